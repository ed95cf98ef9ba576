// npm `memjs` speaks the binary protocol only, which the server refuses by design. Arguments: PORT, "refused" or "served".
// Refused means that every operation fails, and that its caller gets the error at once.
'use strict';
const assert = require('node:assert');
const memjs = require('memjs');
const { until } = require('./common.js');

const [, , port, expected] = process.argv;
const timeout = expected === 'served' ? 20 : 2;
const c = memjs.Client.create(`127.0.0.1:${port}`, { timeout, conntimeout: timeout, retries: 1, logger: { log() {} } });

const calls = {
  set: () => c.set('k', 'v', { expires: 100 }),
  get: () => c.get('k'),
  add: () => c.add('k2', 'v', {}),
  replace: () => c.replace('k', 'w', {}),
  append: () => c.append('k', 'x'),
  prepend: () => c.prepend('k', 'x'),
  touch: () => c.touch('k', 100),
  increment: () => c.increment('n', 1, { initial: 5 }),
  decrement: () => c.decrement('n', 1, { initial: 5 }),
  delete: () => c.delete('k'),
};

(async () => {
  for (const [name, call] of Object.entries(calls)) {
    const outcome = await Promise.race([
      call().then(() => 'served', () => 'refused'),
      new Promise((r) => setTimeout(r, 60000, 'silent')),
    ]);
    assert.strictEqual(outcome, expected, name);
    console.log(`memjs ${name} ${outcome}`);
    // This client forgets what it writes to a connection whose end has arrived and is not read yet.
    if (expected === 'refused') await until('the connection has ended', () => c.servers.every((server) => !server._socket));
  }
  process.exit(0);
})().catch((e) => { console.error(e); process.exit(1); });
