<?php
// php-memcached with a prefix, Laravel's cache, or Symfony's. Arguments: PORT, a plan (load.py), "memcached", "laravel" or "symfony".

declare(strict_types=1);

use Illuminate\Cache\MemcachedStore;
use Illuminate\Cache\Repository;
use Symfony\Component\Cache\Adapter\MemcachedAdapter;
use Symfony\Contracts\Cache\ItemInterface;

[, $port, $plan, $kind] = $argv;
$plan = json_decode($plan, true);

function value_of(string $key): string
{
    return str_repeat("the value of $key ", 20);
}

function sleep_until(float $moment): void
{
    usleep((int) max(0, ($moment - microtime(true)) * 1e6));
}

/** Values by key. $compute is given the keys that are missing, and counts. */
interface Cache
{
    public function fetch(array $keys, int $ttl, callable $compute): array;

    public function delete(string $key): void;
}

function client(string $port): Memcached
{
    $m = new Memcached();
    $m->setOptions([Memcached::OPT_BINARY_PROTOCOL => true, Memcached::OPT_TCP_NODELAY => true]);
    $m->addServer('127.0.0.1', (int) $port);
    return $m;
}

class Plain implements Cache
{
    private Memcached $m;

    public function __construct(string $port)
    {
        $this->m = client($port);
        $this->m->setOption(Memcached::OPT_PREFIX_KEY, 'app:');
    }

    public function fetch(array $keys, int $ttl, callable $compute): array
    {
        if (count($keys) === 1) {
            $value = $this->m->get($keys[0]);
            $found = $this->m->getResultCode() === Memcached::RES_SUCCESS ? [$keys[0] => $value] : [];
        } else {
            $found = $this->m->getMulti($keys) ?: [];
        }
        $missing = array_values(array_diff($keys, array_keys($found)));
        if ($missing) {
            $new = $compute($missing);
            $this->m->setMulti($new, $ttl);
            $found += $new;
        }
        return $found;
    }

    public function delete(string $key): void
    {
        $this->m->delete($key);
    }
}

class Laravel implements Cache
{
    private Repository $cache;

    public function __construct(string $port)
    {
        $this->cache = new Repository(new MemcachedStore(client($port), 'app'));
    }

    public function fetch(array $keys, int $ttl, callable $compute): array
    {
        if (count($keys) === 1) {
            return [$keys[0] => $this->cache->remember($keys[0], $ttl, fn () => $compute($keys)[$keys[0]])];
        }
        $found = array_filter($this->cache->many($keys), fn ($value) => $value !== null && $value !== false);
        $missing = array_values(array_diff($keys, array_keys($found)));
        if ($missing) {
            $new = $compute($missing);
            $this->cache->putMany($new, $ttl);
            $found += $new;
        }
        return $found;
    }

    public function delete(string $key): void
    {
        $this->cache->forget($key);
    }
}

class Symfony implements Cache
{
    private MemcachedAdapter $cache;

    public function __construct(string $port)
    {
        $this->cache = new MemcachedAdapter(MemcachedAdapter::createConnection("memcached://127.0.0.1:$port"), 'app');
    }

    private static function name(string $key): string
    {
        return str_replace(':', '.', $key);
    }

    public function fetch(array $keys, int $ttl, callable $compute): array
    {
        if (count($keys) === 1) {
            return [$keys[0] => $this->cache->get(self::name($keys[0]), function (ItemInterface $item) use ($keys, $ttl, $compute) {
                $item->expiresAfter($ttl);
                return $compute($keys)[$keys[0]];
            })];
        }
        $items = $found = [];
        // Those that are there come first, whatever the order of the keys.
        foreach ($this->cache->getItems(array_map([self::class, 'name'], $keys)) as $name => $item) {
            $items[$name] = $item;
        }
        $missing = [];
        foreach ($keys as $key) {
            $item = $items[self::name($key)];
            if ($item->isHit()) {
                $found[$key] = $item->get();
            } else {
                $missing[] = $key;
            }
        }
        if ($missing) {
            $new = $compute($missing);
            foreach ($missing as $key) {
                $this->cache->saveDeferred($items[self::name($key)]->set($new[$key])->expiresAfter($ttl));
            }
            $this->cache->commit();
            $found += $new;
        }
        return $found;
    }

    public function delete(string $key): void
    {
        $this->cache->delete(self::name($key));
    }
}

function connect(string $kind, string $port): Cache
{
    return match ($kind) {
        'memcached' => new Plain($port),
        'laravel' => new Laravel($port),
        'symfony' => new Symfony($port),
    };
}

function act(array $plan, Cache $cache): array
{
    $results = [];
    foreach ($plan['steps'] as $step) {
        $result = ['computed' => 0, 'ms' => [], 'errors' => []];
        $compute = function (array $missing) use (&$result, $step): array {
            $result['computed'] += count($missing);
            usleep((int) ($step['compute'] * 1e6));
            return array_combine($missing, array_map('value_of', $missing));
        };
        sleep_until($plan['start'] + $step['at']);
        $end = $plan['start'] + $step['at'] + $step['seconds'];
        do {
            $begun = hrtime(true);
            try {
                $got = $cache->fetch($step['keys'], $step['ttl'], $compute);
                foreach ($step['keys'] as $key) {
                    if (($got[$key] ?? null) !== value_of($key)) {
                        throw new Exception("wrong: $key");
                    }
                }
            } catch (Throwable $error) {
                $result['errors'][] = (string) $error;
            }
            $result['ms'][] = (hrtime(true) - $begun) / 1e6;
            usleep((int) ($step['think'] * 1e6));
        } while (microtime(true) < $end);
        $results[$step['name']] = $result;
    }
    return $results;
}

function deleter(array $plan, Cache $cache): array
{
    foreach ($plan['steps'] as $step) {
        if (!isset($step['delete_every'])) {
            continue;
        }
        $end = $plan['start'] + $step['at'] + $step['seconds'];
        for ($at = $plan['start'] + $step['at'] + $step['delete_every']; $at < $end; $at += $step['delete_every']) {
            sleep_until($at);
            array_map([$cache, 'delete'], $step['keys']);
        }
    }
    return [];
}

/** Runs it in a process of its own; where its result comes from. */
function in_process(callable $work)
{
    [$reader, $writer] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    if (pcntl_fork() === 0) {
        fclose($reader);
        fwrite($writer, json_encode($work()));
        exit(0);
    }
    fclose($writer);
    return $reader;
}

foreach (['Illuminate/Cache', 'Symfony/Component/Cache', 'Illuminate/Support'] as $library) {
    if (is_file("/usr/share/php/$library/autoload.php")) {
        require_once "/usr/share/php/$library/autoload.php";
    }
}
// Loads the classes that all processes need, before they are forked.
$warm = connect($kind, $port);
$warm->fetch(['none'], 1, fn ($keys) => [$keys[0] => 1]);
unset($warm);
$readers = [];
for ($n = 0; $n < $plan['processes'] * $plan['threads']; ++$n) {
    $readers[] = in_process(fn () => act($plan, connect($kind, $port)));
}
$readers[] = in_process(fn () => deleter($plan, connect($kind, $port)));
$merged = [];
foreach ($readers as $reader) {
    foreach (json_decode(stream_get_contents($reader), true) as $name => $one) {
        $merged[$name] ??= ['computed' => 0, 'ms' => [], 'errors' => []];
        $merged[$name]['computed'] += $one['computed'];
        array_push($merged[$name]['ms'], ...$one['ms']);
        array_push($merged[$name]['errors'], ...$one['errors']);
    }
}
echo json_encode($merged), "\n";
