<?php
// One of several processes that ask for the same ten keys at once. Arguments: PORT, and "first" for the one that computes: it waits
// until the others wait.

declare(strict_types=1);

$port = (int) $argv[1];
$keys = array_map(fn ($n) => "page:$n", range(1, 10));
$m = new Memcached();
$m->setOptions([Memcached::OPT_BINARY_PROTOCOL => true, Memcached::OPT_TCP_NODELAY => true, Memcached::OPT_POLL_TIMEOUT => 40000]);
$m->addServer('127.0.0.1', $port);

function held(int $port): int
{
    $s = fsockopen('127.0.0.1', $port);
    fwrite($s, "stats cattlegrid\r\n");
    while (($line = fgets($s)) !== false && $line !== "END\r\n") {
        if (preg_match('/^STAT held (\d+)/', $line, $found)) {
            return (int) $found[1];
        }
    }
    return 0;
}

$found = $m->getMulti($keys);
$missed = array_diff($keys, array_keys($found));
echo 'missed ', count($missed), "\n";
foreach ($found as $key => $value) {
    if ($value !== "of $key") {
        exit(1);
    }
}
if (isset($argv[2])) {
    $end = microtime(true) + 60;
    while (held($port) !== 80 && microtime(true) < $end) {
        usleep(20000);
    }
}
foreach ($missed as $key) {
    $m->set($key, "of $key");
}
echo 'computed ', count($missed), "\n";
