// npm memjs or memcached, as a process of Express would use them: many requests share the process' client. Arguments: PORT, a plan
// (load.py) whose `threads` are requests at a time, "memjs" or "memcached".
'use strict';
const { fork } = require('node:child_process');
const path = require('node:path');
const modules = path.join(__dirname, '..', 'node', 'node_modules');

const [, , port, text, kind, role] = process.argv;
const plan = JSON.parse(text);
const valueOf = (key) => `the value of ${key} `.repeat(20);
const sleepUntil = (moment) => new Promise((done) => setTimeout(done, Math.max(0, moment * 1000 - Date.now())));
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

function connect() {
  if (kind === 'memjs') {
    const client = require(path.join(modules, 'memjs')).Client.create(`127.0.0.1:${port}`, { logger: { log() {} } });
    return {
      async getMany(keys) {
        const got = await Promise.all(keys.map((key) => client.get(key)));
        return Object.fromEntries(keys.flatMap((key, n) => (got[n].value === null ? [] : [[key, got[n].value.toString()]])));
      },
      set: (key, value, ttl) => client.set(key, value, { expires: ttl }),
      delete: (key) => client.delete(key),
      close: () => client.close(),
    };
  }
  const client = new (require(path.join(modules, 'memcached')))(`127.0.0.1:${port}`);
  const call = (name, ...given) => new Promise((done, fail) => client[name](...given, (error, got) => (error ? fail(error) : done(got))));
  return {
    async getMany(keys) {
      if (keys.length > 1) return call('getMulti', keys);
      const got = await call('get', keys[0]);
      return got === undefined ? {} : { [keys[0]]: got };
    },
    set: (key, value, ttl) => call('set', key, value, ttl),
    delete: (key) => call('del', key),
    close: () => client.end(),
  };
}

async function request(client, step, result) {
  const begun = performance.now();
  try {
    const found = await client.getMany(step.keys);
    const missing = step.keys.filter((key) => !(key in found));
    if (missing.length > 0) {
      result.computed += missing.length;
      await sleep(step.compute);
      await Promise.all(missing.map((key) => client.set(key, valueOf(key), step.ttl)));
      for (const key of missing) found[key] = valueOf(key);
    }
    for (const key of step.keys) if (found[key] !== valueOf(key)) throw new Error(`wrong: ${key} ${found[key]}`);
  } catch (error) {
    result.errors.push(String(error));
  }
  result.ms.push(performance.now() - begun);
}

async function act(client, results) {
  for (const step of plan.steps) {
    const result = results[step.name];
    await sleepUntil(plan.start + step.at);
    do {
      await request(client, step, result);
      await sleep(step.think);
    } while (Date.now() / 1000 < plan.start + step.at + step.seconds);
  }
}

async function deleter() {
  const client = connect();
  for (const step of plan.steps) {
    if (!step.delete_every) continue;
    for (let at = plan.start + step.at + step.delete_every; at < plan.start + step.at + step.seconds; at += step.delete_every) {
      await sleepUntil(at);
      for (const key of step.keys) await client.delete(key);
    }
  }
  client.close();
  return {};
}

async function worker() {
  const client = connect();
  const results = Object.fromEntries(plan.steps.map((step) => [step.name, { computed: 0, ms: [], errors: [] }]));
  await Promise.all(Array.from({ length: plan.threads }, () => act(client, results)));
  client.close();
  return results;
}

function child(as) {
  return new Promise((done) => fork(__filename, [port, text, kind, as]).once('message', done));
}

async function main() {
  const all = await Promise.all([...Array.from({ length: plan.processes }, () => child('worker')), child('deleter')]);
  const merged = {};
  for (const results of all) {
    for (const [name, one] of Object.entries(results)) {
      merged[name] ??= { computed: 0, ms: [], errors: [] };
      merged[name].computed += one.computed;
      merged[name].ms.push(...one.ms);
      merged[name].errors.push(...one.errors);
    }
  }
  console.log(JSON.stringify(merged));
}

if (role) (role === 'worker' ? worker() : deleter()).then((results) => process.send(results, () => process.exit(0)));
else main();
