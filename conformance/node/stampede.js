// Fifty gets of one cold key at once on one connection; a caller that misses computes for 100 ms and stores.
// Arguments: PORT, "memcached" or "memcache-client", "busy" or "fresh": whether the connection was busy before, so that the
// server has seen that it carries several commands at a time. Prints how many computed.
'use strict';
const assert = require('node:assert');
const { Socket } = require('node:net');
const { promisify } = require('node:util');

// What is written at once is sent at once, also when this process is not scheduled in the middle.
const { write } = Socket.prototype;
Socket.prototype.write = function (...what) {
  if (this.remotePort && this.writableCorked === 0) {
    this.cork();
    setImmediate(() => this.uncork());
  }
  return write.apply(this, what);
};

const [, , port, name, before] = process.argv;
const address = `127.0.0.1:${port}`;
let get, set;
if (name === 'memcached') {
  const Memcached = require('memcached');
  const client = new Memcached(address, { timeout: 30000, retries: 0, poolSize: 1 });
  get = promisify(client.get).bind(client);
  set = (key, value) => promisify(client.set).bind(client)(key, value, 0);
} else {
  const { MemcacheClient } = require('memcache-client');
  const client = new MemcacheClient({ server: { server: address, maxConnections: 1 }, cmdTimeout: 30000 });
  get = async (key) => (await client.get(key))?.value;
  set = (key, value) => client.set(key, value);
}

let computed = 0;
const getOrCompute = async (key) => {
  const found = await get(key);
  if (found !== undefined) return found;
  computed += 1;
  await new Promise((r) => setTimeout(r, 100));
  await set(key, 'computed');
  return 'computed';
};

(async () => {
  await set('hot', 'x');
  for (let n = 0; before === 'busy' && n < 5; n += 1) await Promise.all(Array.from({ length: 500 }, () => get('hot')));
  computed = 0;
  const got = await Promise.all(Array.from({ length: 50 }, () => getOrCompute('page:1')));
  assert(got.every((value) => value === 'computed'));
  console.log(computed);
  process.exit(0);
})().catch((e) => { console.error(e); process.exit(1); });
