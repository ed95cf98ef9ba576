// Objects with a client. Arguments: PORT, "memcached" or "memcache-client". On standard input {"tour": [[name, value or null], ...],
// "again": [...]}: gets one by one, and a get of several keys.
'use strict';
const assert = require('node:assert');
const { promisify } = require('node:util');

const { tour, again } = JSON.parse(require('node:fs').readFileSync(0, 'utf8'));
const [, , port, name] = process.argv;
const address = `127.0.0.1:${port}`;
let get, getMany;
if (name === 'memcached') {
  const Memcached = require('memcached');
  const client = new Memcached(address, { timeout: 30000, retries: 0, poolSize: 1 });
  [get, getMany] = ['get', 'getMulti'].map((method) => promisify(client[method]).bind(client));
} else {
  const { MemcacheClient } = require('memcache-client');
  const client = new MemcacheClient({ server: { server: address, maxConnections: 1 }, cmdTimeout: 30000 });
  get = async (key) => (await client.get(key))?.value;
  getMany = async (keys) => Object.fromEntries(Object.entries(await client.get(keys)).map(([key, got]) => [key, got.value]));
}

(async () => {
  for (const [key, wanted] of tour) {
    const got = await get(key);
    assert.strictEqual(got === undefined ? null : String(got), wanted, key);
  }
  const got = await getMany(again.map(([key]) => key));
  assert.deepStrictEqual(
    Object.fromEntries(Object.entries(got).map(([key, value]) => [key, String(value)])),
    Object.fromEntries(again.filter(([, value]) => value !== null)),
  );
  await assert.rejects(get('quota:addandcheck:userKey:0'));
  assert.strictEqual(String(await get('counter:get:n')), '6');
  console.log('as expected');
  process.exit(0);
})();
