<?php
// php-memcached with tags in values, and announced. Arguments: PORT and protocol (text or binary). Prints a line for each part that
// has passed.

declare(strict_types=1);

$m = new Memcached();
$m->setOptions([Memcached::OPT_BINARY_PROTOCOL => $argv[2] === 'binary', Memcached::OPT_POLL_TIMEOUT => 30000]);
$m->addServer('127.0.0.1', (int) $argv[1]);

function same(mixed $got, mixed $expected, string $what): void
{
    if ($got !== $expected) {
        $show = fn ($value) => substr(var_export($value, true), 0, 300);
        throw new Exception("$what: {$show($got)} instead of {$show($expected)}");
    }
    echo "$what\n";
}

// Soon after the start a value whose miss is not known is not kept if it was invalidated: each is looked for first.
function set(string $key, mixed $value): bool
{
    global $m;
    $m->get($key);
    return $m->set($key, $value);
}

$long = str_repeat('x', 100000);
same(set('v:1', "@tags:a,b\nvalue"), true, 'a short text');
same($m->get('v:1'), 'value', 'it comes without the line');
same($m->delete('@tag:a'), true, 'an invalidation');
same($m->get('v:1'), false, 'a miss after it');

// Above 2,000 bytes the extension compresses, and the line with it.
same(set('v:1', "@tags:a\n$long"), true, 'a compressed text');
same($m->get('v:1'), "@tags:a\n$long", 'its line was hidden');
same(set('must:1', "@tags:a\n$long"), false, 'it is refused where the line is required');
$m->setOption(Memcached::OPT_COMPRESSION, false);
same(set('must:1', "@tags:a\n$long"), true, 'a long text without compression');
same($m->get('must:1'), $long, 'it comes without the line, too');
$m->delete('@tag:a');
same($m->get('must:1'), false, 'a miss after its invalidation');

// With another serializer: the tags are announced.
$m->setOption(Memcached::OPT_COMPRESSION, true);
$value = ['user' => 7, 'text' => $long];
same(set('said:1', $value), false, 'a store without an announcement');
same($m->getResultCode(), Memcached::RES_NOTSTORED, 'its result');
same($m->set('@tags:said:1', 'user:7,product:9'), true, 'an announcement');
same(set('said:1', $value), true, 'a store after it');
same($m->get('said:1'), $value, 'an array');
$m->delete('@tag:product:9');
same($m->get('said:1'), false, 'a miss after an invalidation of what was announced');
