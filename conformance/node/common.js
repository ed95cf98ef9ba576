// What the scripts share.
'use strict';
const assert = require('node:assert');
const net = require('node:net');

// Asks until `condition` holds.
exports.until = async (what, condition) => {
  const end = Date.now() + 20000;
  while (!(await condition())) {
    assert(Date.now() < end, `not within 20 s: ${what}`);
    await new Promise((r) => setTimeout(r, 20));
  }
};

// Seconds that a value has left, asked for on a connection of its own.
exports.ttl = (port, key) => new Promise((resolve, reject) => {
  let got = '';
  const socket = net.connect(port, '127.0.0.1', () => socket.end(`mg ${key} t\r\n`));
  socket.setEncoding('latin1').on('data', (part) => { got += part; }).on('error', reject);
  socket.on('end', () => resolve(Number(/^HD t(-?\d+)\r\n$/.exec(got)?.[1])));
});
