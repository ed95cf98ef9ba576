// npm `memcache-client`: every operation. Argument: PORT.
'use strict';
const assert = require('node:assert');
const { MemcacheClient } = require('memcache-client');
const { until, ttl } = require('./common.js');

const server = `127.0.0.1:${process.argv[2]}`;
const c = new MemcacheClient({ server: { server, maxConnections: 3 }, cmdTimeout: 30000 });
const value = async (key) => (await c.get(key))?.value;

const tests = {
  async storage() {
    assert.strictEqual(await c.get('s'), undefined);
    for (const verb of ['replace', 'append', 'prepend']) await assert.rejects(c[verb]('s', 'x'), /NOT_STORED/);
    assert.deepStrictEqual(await c.add('s', 'b'), ['STORED']);
    await assert.rejects(c.add('s', 'x'), /NOT_STORED/);
    assert.strictEqual(await c.set('s', 'b', { ignoreNotStored: true }).then((r) => r[0]), 'STORED');
    await c.append('s', 'c');
    await c.prepend('s', 'a');
    assert.strictEqual(await value('s'), 'abc');
    await c.replace('s', 'new');
    assert.strictEqual(await value('s'), 'new');
    assert.deepStrictEqual(await c.delete('s'), ['DELETED']);
    await assert.rejects(c.delete('s'), /NOT_FOUND/);
  },
  async binary() {
    const all = Buffer.concat([Buffer.from(Array.from({ length: 256 }, (_, i) => i)), Buffer.from('\r\nEND\r\nVALUE x 0 1\r\n')]);
    for (const v of [all, Buffer.alloc(0), 'text é', 12, { a: [1, 2, { b: 'c' }] }]) {
      await c.set('b', v);
      assert.deepStrictEqual(await value('b'), v);
    }
  },
  async sizes() {
    for (const n of [0, 1, 2048, 65537, (1 << 20) - 4096]) {
      const v = Buffer.alloc(n, 'abc\r\n');
      await c.set('z', v);
      assert(v.equals(await value('z')));
    }
    await assert.rejects(c.set('z', Buffer.alloc((1 << 20) + 1)), /object too large for cache/);
    assert.strictEqual(await c.get('z'), undefined);
    await c.set('z', 'again');
    assert.strictEqual(await value('z'), 'again');
  },
  async multi() {
    const names = Array.from({ length: 1000 }, (_, i) => `m${i}`);
    await Promise.all(names.map((n) => c.set(n, `value ${n}`)));
    for (const verb of ['get', 'gets']) {
      const got = await c[verb](['absent', ...names]);
      assert.strictEqual(Object.keys(got).length, 1000);
      for (const n of names) assert.strictEqual(got[n].value, `value ${n}`);
    }
  },
  async cas() {
    await c.set('c', 'one');
    const { casUniq, value: v } = await c.gets('c');
    assert.strictEqual(v, 'one');
    assert.deepStrictEqual(await c.cas('c', 'two', { casUniq }), ['STORED']);
    await assert.rejects(c.cas('c', 'three', { casUniq }), /EXISTS/);
    await assert.rejects(c.cas('absent', 'x', { casUniq }), /NOT_FOUND/);
    assert.strictEqual(await value('c'), 'two');
  },
  async counters() {
    await assert.rejects(c.incr('n', 1), /NOT_FOUND/);
    await c.set('n', '10');
    assert.strictEqual(await c.incr('n', 5), '15');
    assert.strictEqual(await c.decr('n', 100), '0');
    await c.set('n', 'text');
    await assert.rejects(c.incr('n', 1), /non-numeric/);
  },
  async noreply() {
    const one = new MemcacheClient({ server: { server, maxConnections: 1 }, cmdTimeout: 30000 });
    await one.set('r', '1', { noreply: true });
    await one.incr('r', 5, { noreply: true });
    await one.append('r', '0', { noreply: true });
    await one.touch('r', 100, { noreply: true });
    await until('noreply commands took effect', async () => (await one.get('r'))?.value === '60');
    await one.delete('r', { noreply: true });
    await until('deleted', async () => (await one.get('r')) === undefined);
    one.shutdown();
  },
  async expiry() {
    await c.set('e1', 'v', { lifetime: 1 });
    await c.set('e2', 'v', { lifetime: 100 });
    assert.deepStrictEqual(await c.touch('e2', 1000), ['TOUCHED']);
    const left = await ttl(process.argv[2], 'e2');
    assert(left > 100 && left <= 1000, `${left}`);
    await assert.rejects(c.touch('absent', 1), /NOT_FOUND/);
    await until('e1 expires', async () => (await c.get('e1')) === undefined);
    assert.strictEqual(await value('e2'), 'v');
  },
  async administration() {
    assert.match((await c.version())[1], /^\d+\.\d+\.\d+/);
    const stats = (await c.cmd('stats')).STAT;
    assert(stats.length > 80);
    await c.set('f', 'v');
    assert.deepStrictEqual(await c.cmd('flush_all'), ['OK']);
    assert.strictEqual(await c.get('f'), undefined);
    await assert.rejects(c.cmd('nonsense'), /ERROR/);
    assert.deepStrictEqual(await c.set('f', 'still in step'), ['STORED']);
    assert.strictEqual(await value('f'), 'still in step');
  },
};

(async () => {
  for (const [name, test] of Object.entries(tests)) {
    await test();
    console.log(`memcache-client ${name} ok`);
  }
  c.shutdown();
})().catch((e) => { console.error(e); process.exit(1); });
