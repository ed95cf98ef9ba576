// npm `memcached`: every operation. Arguments: PORT. Prints one line a group; the exit status says whether all held.
'use strict';
const assert = require('node:assert');
const { promisify } = require('node:util');
const Memcached = require('memcached');
const { until, ttl } = require('./common.js');

const address = `127.0.0.1:${process.argv[2]}`;
const client = new Memcached(address, { timeout: 30000, retries: 0, maxValue: 16 << 20, poolSize: 4 });
const c = {};
for (const name of ['get', 'gets', 'getMulti', 'set', 'add', 'replace', 'append', 'prepend', 'cas', 'incr', 'decr', 'del', 'touch',
  'flush', 'version', 'stats', 'settings', 'slabs', 'items']) c[name] = promisify(client[name]).bind(client);

const notStored = (promise) => assert.rejects(promise, /not stored/);

const tests = {
  async storage() {
    assert.strictEqual(await c.get('s'), undefined);
    await notStored(c.replace('s', 'x', 0));
    await notStored(c.append('s', 'x'));
    await notStored(c.prepend('s', 'x'));
    assert.strictEqual(await c.add('s', 'b', 0), true);
    await notStored(c.add('s', 'x', 0));
    assert.strictEqual(await c.append('s', 'c'), true);
    assert.strictEqual(await c.prepend('s', 'a'), true);
    assert.strictEqual(await c.get('s'), 'abc');
    assert.strictEqual(await c.replace('s', 'new', 0), true);
    assert.strictEqual(await c.get('s'), 'new');
    assert.strictEqual(await c.del('s'), true);
    assert.strictEqual(await c.del('s'), false);
    assert.strictEqual(await c.get('s'), undefined);
  },
  async types() {
    const all = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
    for (const v of ['', 'text é ✓', 12.5, { a: [1, { b: 'x' }] }, true]) {
      await c.set('t', v, 0);
      assert.deepStrictEqual(await c.get('t'), v);
    }
    await c.set('t', all.subarray(32, 127), 0);
    assert.deepStrictEqual(await c.get('t'), all.subarray(32, 127));
  },
  async sizes() {
    for (const n of [0, 1, 2048, 100000, (1 << 20) - 4096]) {
      const v = 'x'.repeat(n);
      await c.set('z', v, 0);
      assert.strictEqual(await c.get('z'), v);
    }
  },
  async multi() {
    const names = Array.from({ length: 1000 }, (_, i) => `m${i}`);
    await Promise.all(names.map((n) => c.set(n, `value ${n}`, 100)));
    const got = await c.getMulti(['absent', ...names]);
    assert.strictEqual(Object.keys(got).length, 1000);
    for (const n of names) assert.strictEqual(got[n], `value ${n}`);
  },
  async cas() {
    await c.set('c', 'one', 0);
    const got = await c.gets('c');
    assert.strictEqual(got.c, 'one');
    assert.strictEqual(await c.cas('c', 'two', got.cas, 0), true);
    assert.strictEqual(await c.cas('c', 'three', got.cas, 0), false);
    assert.strictEqual(await c.get('c'), 'two');
  },
  async counters() {
    assert.strictEqual(await c.incr('n', 1), false);
    assert.strictEqual(await c.decr('n', 1), false);
    await c.set('n', 10, 0);
    assert.strictEqual(await c.incr('n', 5), 15);
    assert.strictEqual(await c.decr('n', 100), 0);
    await c.set('n', 'text', 0);
    await assert.rejects(c.incr('n', 1), /non-numeric/);
  },
  async expiry() {
    await c.set('e1', 'v', 1);
    await c.set('e2', 'v', 100);
    assert.strictEqual(await c.touch('e2', 1000), true);
    const left = await ttl(process.argv[2], 'e2');
    assert(left > 100 && left <= 1000, `${left}`);
    assert.strictEqual(await c.touch('absent', 100), false);
    await until('e1 expires', async () => (await c.get('e1')) === undefined);
    assert.strictEqual(await c.get('e2'), 'v');
  },
  async administration() {
    const [version] = await c.version();
    assert.match(version.version, /^\d+\.\d+\.\d+$/);
    const [stats] = await c.stats();
    assert(stats.curr_connections >= 1 && stats.limit_maxbytes === 64 << 20);
    const [settings] = await c.settings();
    assert.strictEqual(settings.item_size_max, 1 << 20);
    assert(await c.slabs());
    const items = await c.items();
    const slab = Number(Object.keys(items[0]).find((k) => /^\d+$/.test(k)));
    await promisify(client.cachedump).call(client, address, slab, 5);  // which items it shows depends on the LRU
    await c.set('f', 'v', 0);
    await c.flush();
    assert.strictEqual(await c.get('f'), undefined);
    await c.set('k'.repeat(250), 'v', 0);
    assert.strictEqual(await c.get('k'.repeat(250)), 'v');
  },
  // Last: this client takes a SERVER_ERROR for a fault of the connection and may give the server up.
  async above_the_item_limit() {
    const stored = await c.set('z', 'x'.repeat((1 << 20) + 1), 0).catch(() => false);
    assert.notStrictEqual(stored, true);
  },
};

(async () => {
  for (const [name, test] of Object.entries(tests)) {
    await test();
    console.log(`memcached ${name} ok`);
  }
  client.end();
  process.exit(0);
})().catch((e) => { console.error(e); process.exit(1); });
