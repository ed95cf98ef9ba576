<?php
// php-memcached (on the C library libmemcached) over both protocols: every operation. Arguments: PORT, then options as NAME=VALUE:
// second (the port of another server), protocol (text or binary), username, password, tests (some of them only). Prints a line for
// each test that has passed.

declare(strict_types=1);

$port = (int) $argv[1];
$options = [];
foreach (array_slice($argv, 2) as $argument) {
    [$name, $value] = explode('=', $argument, 2);
    $options[$name] = $value;
}
$binary = ($options['protocol'] ?? 'binary') === 'binary';
$logs_in = isset($options['username']);

function client(array $settings = []): Memcached
{
    global $port, $options, $binary;
    $m = new Memcached();
    $m->setOptions($settings + [
        Memcached::OPT_BINARY_PROTOCOL => $binary,
        Memcached::OPT_TCP_NODELAY => true,
        Memcached::OPT_POLL_TIMEOUT => 30000,
    ]);
    if (isset($options['username'])) {
        same($m->setSaslAuthData($options['username'], $options['password']), true);
    }
    $m->addServer('127.0.0.1', $port);
    return $m;
}

function same(mixed $got, mixed $expected, string $what = ''): void
{
    if ($got !== $expected) {
        $show = fn ($value) => substr(var_export($value, true), 0, 300);
        throw new Exception("$what: {$show($got)} instead of {$show($expected)}");
    }
}

function code(Memcached $m, int $expected): void
{
    same($m->getResultCode(), $expected, 'result ' . $m->getResultMessage());
}

function wait_until(string $what, callable $condition): void
{
    $end = microtime(true) + 20;
    while (!$condition()) {
        if (microtime(true) > $end) {
            throw new Exception("not within 20 s: $what");
        }
        usleep(20000);
    }
}

// Seconds that a value has left.
function ttl(string $key): ?int
{
    global $port, $logs_in;
    if ($logs_in) {
        return null;
    }
    $s = fsockopen('127.0.0.1', $port);
    fwrite($s, "mg $key t\r\n");
    $line = fgets($s);
    fclose($s);
    same(preg_match('/^HD t(-?\d+)/', $line, $found), 1, $line);
    return (int) $found[1];
}

$all_bytes = implode('', array_map('chr', range(0, 255)));
$nasty = $all_bytes . "\r\nEND\r\nVALUE x 0 1\r\n\0" . strrev($all_bytes);

$tests = [
    'storage' => function () {
        global $binary;
        $m = client();
        same($m->get('s'), false);
        code($m, Memcached::RES_NOTFOUND);
        same($m->replace('s', 'x'), false);
        code($m, $binary ? Memcached::RES_NOTFOUND : Memcached::RES_NOTSTORED);
        same($m->delete('s'), false);
        code($m, Memcached::RES_NOTFOUND);
        same($m->add('s', 'one'), true);
        same($m->add('s', 'two'), false);
        code($m, $binary ? Memcached::RES_DATA_EXISTS : Memcached::RES_NOTSTORED);
        same($m->replace('s', 'new'), true);
        same($m->set('s', ['a' => [1, null, 2.5]]), true);
        same($m->get('s'), ['a' => [1, null, 2.5]]);
        same($m->checkKey('s'), true);
        same($m->delete('s'), true);
        same($m->get('s'), false);
    },
    'append' => function () {
        $m = client([Memcached::OPT_COMPRESSION => false]);
        same($m->append('a', 'x'), false);
        code($m, Memcached::RES_NOTSTORED);
        same($m->prepend('a', 'x'), false);
        $m->set('a', 'b');
        same($m->append('a', 'c'), true);
        same($m->prepend('a', 'a'), true);
        same($m->get('a'), 'abc');
    },
    'values' => function () {
        global $nasty;
        $m = client();
        foreach ([$nasty, '', "\r\n", 'text é', 5, -7, PHP_INT_MAX, 1.5, true, false, null, [1, ['a' => null]]] as $value) {
            same($m->set('v', $value), true);
            same($m->get('v'), $value);
            code($m, Memcached::RES_SUCCESS);
        }
        $m->setOption(Memcached::OPT_COMPRESSION, false);
        foreach ([0, 1, 1000, 8192, 100000, (1 << 20) - 4096] as $size) {
            $value = substr(str_repeat($nasty, intdiv($size, strlen($nasty)) + 1), 0, $size);
            same($m->set('v', $value), true);
            same($m->get('v'), $value);
        }
    },
    'too_large' => function () {
        $m = client([Memcached::OPT_COMPRESSION => false]);
        $m->set('t', 'old');
        same($m->set('t', str_repeat('x', (1 << 20) + 1)), false);
        code($m, Memcached::RES_E2BIG);
        same($m->get('t'), false);
        same($m->set('t', 'new'), true);
        same($m->get('t'), 'new');
    },
    'compression' => function () {
        $m = client([Memcached::OPT_COMPRESSION => true]);
        $value = str_repeat('compress me ', 200000);
        same($m->set('c', $value), true);
        same($m->get('c'), $value);
    },
    'counters' => function () {
        global $binary;
        $m = client();
        same($m->increment('n'), false);
        code($m, Memcached::RES_NOTFOUND);
        same($m->decrement('n'), false);
        if ($binary) {
            same($m->increment('n', 1, 10, 1000), 10);
            same(ttl('n') === null || ttl('n') > 0 && ttl('n') <= 1000, true);
            same($m->increment('n', 5, 100, 5000), 15);
            same(ttl('n') === null || ttl('n') > 0 && ttl('n') <= 1000, true);
            same($m->decrement('m', 1, 7), 7);
        } else {
            $m->set('n', 15);
        }
        same($m->decrement('n', 5), 10);
        same($m->decrement('n', 100), 0);
        same($m->increment('n', 0), 0);
        $m->set('n', 'text');
        same($m->increment('n'), false);
        same($m->set('n', 41), true);
        same($m->increment('n'), 42);
        same($m->get('n'), 42);
    },
    'expiry' => function () {
        $m = client();
        $m->set('e', 'v', 1000);
        same(ttl('e') === null || ttl('e') > 900 && ttl('e') <= 1000, true);
        $m->set('e', 'v', time() + 3600 * 24 * 60);
        same(ttl('e') === null || ttl('e') > 3600 * 24 * 59, true);
        same($m->touch('e', 100), true);
        same(ttl('e') === null || ttl('e') > 0 && ttl('e') <= 100, true);
        same($m->touch('absent', 1), false);
        code($m, Memcached::RES_NOTFOUND);
        $m->set('short', 'v', 1);
        wait_until('it expires', fn () => $m->get('short') === false);
    },
    'multi' => function () {
        $m = client();
        $values = [];
        foreach (range(0, 999) as $n) {
            $values["g$n"] = str_repeat("value $n\r\n", $n % 20);
        }
        same($m->setMulti($values, 1000), true);
        same($m->getMulti(['absent', ...array_keys($values)]), $values);
        same($m->getMulti(['absent', 'none']), []);
        same(array_keys($m->getMulti(['g2', 'absent', 'g1'], Memcached::GET_PRESERVE_ORDER)), ['g2', 'absent', 'g1']);
        $got = $m->getMulti(['g1', 'g2'], Memcached::GET_EXTENDED);
        same($got['g1']['value'], "value 1\r\n");
        same($got['g1']['cas'] > 0, true);
        same($m->deleteMulti(['g1', 'g2', 'absent']), ['g1' => true, 'g2' => true, 'absent' => Memcached::RES_NOTFOUND]);
        same($m->getMulti(['g1', 'g2']), []);
    },
    'delayed' => function () {
        $m = client();
        $m->setMulti(['d1' => 'one', 'd2' => 'two', 'd3' => 'three']);
        same($m->getDelayed(['d1', 'absent', 'd3'], true), true);
        $all = $m->fetchAll();
        same(array_column($all, 'value', 'key'), ['d1' => 'one', 'd3' => 'three']);
        same($all[0]['cas'] > 0, true);
        same($m->getDelayed(['d1', 'd2']), true);
        same($m->fetch()['key'], 'd1');
        same($m->fetch()['value'], 'two');
        same($m->fetch(), false);
        same($m->get('d2'), 'two');
        $seen = [];
        same($m->getDelayed(['d1', 'd2'], false, function ($m, $item) use (&$seen) {
            $seen[$item['key']] = $item['value'];
        }), true);
        same($seen, ['d1' => 'one', 'd2' => 'two']);
    },
    'cas' => function () {
        $m = client();
        same($m->get('k', null, Memcached::GET_EXTENDED), false);
        $m->set('k', 'first');
        $got = $m->get('k', null, Memcached::GET_EXTENDED);
        same($got['value'], 'first');
        same($m->cas($got['cas'], 'k', 'second'), true);
        same($m->cas($got['cas'], 'k', 'third'), false);
        code($m, Memcached::RES_DATA_EXISTS);
        same($m->get('k'), 'second');
        $m->delete('k');
        same($m->cas($got['cas'], 'k', 'x'), false);
        code($m, Memcached::RES_NOTFOUND);
        same($m->get('filled', function ($m, $key, &$value, &$expiry) {
            $value = "of $key";
            return true;
        }), 'of filled');
        same($m->get('filled'), 'of filled');
    },
    'buffered' => function () {
        global $binary;
        $buffers = [Memcached::OPT_BUFFER_WRITES => true];
        $cases = [[Memcached::OPT_NOREPLY => true], $buffers + [Memcached::OPT_NOREPLY => true]];
        if ($binary) {
            // Over text libmemcached then waits for replies that it has already skipped, with any server.
            $cases[] = $buffers;
        }
        foreach ($cases as $n => $settings) {
            $m = client($settings);
            $reader = client();
            $keys = array_map(fn ($i) => "b$n-$i", range(0, 499));
            foreach ($keys as $key) {
                $m->set($key, "of $key");
            }
            $m->flushBuffers();
            wait_until('all are stored', fn () => count($reader->getMulti($keys)) === 500);
            same($reader->getMulti($keys), array_combine($keys, array_map(fn ($key) => "of $key", $keys)));
            $m->delete($keys[0]);
            $m->flushBuffers();
            wait_until('it is deleted', fn () => $reader->get($keys[0]) === false);
        }
    },
    'statistics' => function () {
        global $port, $binary;
        $m = client();
        $m->set('x', 'v');
        $name = "127.0.0.1:$port";
        same(str_starts_with($m->getVersion()[$name], '1.6.'), true);
        $all = $m->getStats()[$name];
        same(count($all) > 20 && $all['pid'] > 0 && $all['curr_items'] > 0, true);
        same(isset($m->getStats('settings')[$name]['maxconns']), true);
        same(is_array($m->getStats('items')), true);
        if (!$binary) {
            // A list of keys is for text clients.
            wait_until('the key is listed', fn () => in_array('x', $m->getAllKeys() ?: [], true));
        }
        same(count($m->getServerList()), 1);
        same($m->quit(), true);
        same($m->get('x'), 'v');
    },
    'keys' => function () {
        $m = client([Memcached::OPT_PREFIX_KEY => 'space:']);
        $m->set('key', 'v');
        same(client()->get('space:key'), 'v');
        same($m->getMulti(['key', 'absent']), ['key' => 'v']);
        same($m->set(str_repeat('k', 300), 'v'), false);
        code($m, Memcached::RES_BAD_KEY_PROVIDED);
        same($m->set(str_repeat('k', 200), 'v'), true);
        same($m->get(str_repeat('k', 200)), 'v');
    },
    'two_servers' => function () {
        global $port, $options;
        if (!isset($options['second'])) {
            return;
        }
        $m = client([Memcached::OPT_DISTRIBUTION => Memcached::DISTRIBUTION_CONSISTENT, Memcached::OPT_LIBKETAMA_COMPATIBLE => true]);
        $m->addServer('127.0.0.1', (int) $options['second']);
        $values = [];
        foreach (range(0, 499) as $n) {
            $values["two$n"] = "value $n";
        }
        same($m->setMulti($values), true);
        same(count($m->getMulti(array_keys($values))), 500);
        foreach ($m->getStats() as $server => $stats) {
            same($stats['curr_items'] > 50, true, $server);
        }
        ksort($values);
        $got = $m->getMulti(array_keys($values));
        ksort($got);
        same($got, $values);
        same(array_sum($m->deleteMulti(array_keys($values))), 500);
        same($m->setByKey('place', 'k', 'v') && $m->getByKey('place', 'k') === 'v', true);
        same(count($m->getVersion()), 2);
    },
    'flush' => function () {
        $m = client();
        $m->set('x', 'v');
        same($m->flush(), true);
        same($m->get('x'), false);
        same($m->set('x', 'again') && $m->get('x') === 'again', true);
        same($m->flush(1000), true);
        same($m->get('x'), 'again');
    },
];

foreach (isset($options['tests']) ? explode(',', $options['tests']) : array_keys($tests) as $name) {
    try {
        $tests[$name]();
    } catch (Throwable $e) {
        fwrite(STDERR, "$name: {$e->getMessage()}\n{$e->getTraceAsString()}\n");
        exit(1);
    }
    echo "$name\n";
}
