// npm `memjs`, which speaks the binary protocol: every operation. Arguments: PORT, then a user and a password if they are needed,
// and "refused" if they are wrong.
'use strict';
const assert = require('node:assert');
const memjs = require('memjs');
const { until, ttl } = require('./common.js');

const [, , port, username, password, refused] = process.argv;
const lines = [];
const c = memjs.Client.create(`127.0.0.1:${port}`, {
  username, password, timeout: refused ? 5 : 30, conntimeout: 30, retries: 1, logger: { log: (line) => lines.push(line) },
});
const value = async (key) => (await c.get(key)).value?.toString('latin1') ?? null;
const stats = (key) => new Promise((resolve, reject) => c.statsWithKey(key, (e, _, got) => (e ? reject(e) : resolve(got))));

const tests = {
  async storage() {
    assert.strictEqual(await value('s'), null);
    assert.strictEqual(await c.replace('s', 'x', {}), false);
    await assert.rejects(c.append('s', 'x'), /undefined|stored/i);
    assert.strictEqual(await c.add('s', 'b', {}), true);
    assert.strictEqual(await c.add('s', 'x', {}), false);
    assert.strictEqual(await c.append('s', 'c'), true);
    // This client sends an append here.
    assert.strictEqual(await c.prepend('s', 'd'), true);
    assert.strictEqual(await value('s'), 'bcd');
    assert.strictEqual(await c.replace('s', 'new', {}), true);
    assert.strictEqual(await c.set('s', 'set', {}), true);
    assert.strictEqual(await value('s'), 'set');
    assert.strictEqual(await c.delete('s'), true);
    assert.strictEqual(await c.delete('s'), false);
  },
  async values() {
    const all = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
    for (const v of [all, Buffer.alloc(0), Buffer.from('\r\nEND\r\n'), Buffer.from('text é')]) {
      assert.strictEqual(await c.set('b', v, {}), true);
      assert(v.equals((await c.get('b')).value));
    }
    await c.set('b', 'flags', {});
    assert.strictEqual((await c.get('b')).flags.readUInt32BE(0), 0);
  },
  async sizes() {
    for (const n of [0, 1, 2048, 65537, (1 << 20) - 4096]) {
      const v = Buffer.alloc(n, 'abc\r\n');
      assert.strictEqual(await c.set('z', v, {}), true);
      assert(v.equals((await c.get('z')).value));
    }
    await assert.rejects(c.set('z', Buffer.alloc((1 << 20) + 1), {}), /too large/i);
    assert.strictEqual(await c.set('z', 'again', {}), true);
    assert.strictEqual(await value('z'), 'again');
  },
  async counters() {
    assert.deepStrictEqual(await c.increment('n', 5, { initial: 10, expires: 1000 }), { success: true, value: 10 });
    assert.deepStrictEqual(await c.increment('n', 5, { initial: 10 }), { success: true, value: 15 });
    assert.deepStrictEqual(await c.decrement('n', 1, {}), { success: true, value: 14 });
    assert.deepStrictEqual(await c.decrement('n', 100, {}), { success: true, value: 0 });
    await c.set('n', 'text', {});
    await assert.rejects(c.increment('n', 1, {}), /./);
  },
  async expiry() {
    await c.set('e', 'v', { expires: 1 });
    await c.set('f', 'v', { expires: 100 });
    assert.strictEqual(await c.touch('f', 1000), true);
    assert.strictEqual(await c.touch('absent', 1000), false);
    if (!username) assert((await ttl(port, 'f')) > 100);
    await until('e has expired', async () => (await value('e')) === null);
    assert.strictEqual(await value('f'), 'v');
  },
  async together() {
    const names = Array.from({ length: 1000 }, (_, i) => `m${i}`);
    assert((await Promise.all(names.map((n) => c.set(n, `value ${n}`, {})))).every((stored) => stored));
    assert.deepStrictEqual(await Promise.all(names.map(value)), names.map((n) => `value ${n}`));
  },
  async statistics() {
    const got = await stats('');
    assert(Number(got.curr_items) > 1000 && Object.keys(got).length > 40);
    assert.strictEqual((await stats('settings')).evictions, 'on');
    await assert.rejects(stats('nothing-of-that-name'), /./);
    await new Promise((resolve) => c.resetStats(resolve));
    assert.strictEqual((await stats('')).cmd_set, '0');
  },
  async flush() {
    assert.deepStrictEqual(await c.flush(), { [`127.0.0.1:${port}`]: true });
    assert.strictEqual(await value('m1'), null);
  },
  async quit() {
    c.quit();
    await until('the connection has ended', () => c.servers.every((server) => !server._socket));
    assert.strictEqual(await c.set('q', 'v', {}), true);
    assert.strictEqual(await value('q'), 'v');
  },
};

(async () => {
  if (refused) {
    await assert.rejects(c.get('s'));
    await assert.rejects(c.set('s', 'v', {}));
    console.log('refused');
  } else {
    for (const [name, test] of Object.entries(tests)) {
      await test();
      console.log(`memjs ${name}`);
    }
  }
  process.exit(0);
})().catch((e) => { console.error(e, lines); process.exit(1); });
