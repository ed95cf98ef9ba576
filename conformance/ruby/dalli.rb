# Dalli over the binary protocol: every operation. Arguments: PORT, then options as NAME=VALUE: username, password, and
# tests=NAME,NAME for some of the tests only. Prints a line for each test that has passed.
# frozen_string_literal: true

require 'dalli'
require 'socket'

PORT, *GIVEN = ARGV
OPTIONS = GIVEN.to_h { |arg| arg.split('=', 2) }
ADDRESS = "127.0.0.1:#{PORT}"
Dalli.logger.level = Logger::FATAL

def client(options = {})
  login = { username: OPTIONS['username'], password: OPTIONS['password'] }.compact
  Dalli::Client.new(ADDRESS, { socket_timeout: 30, down_retry_delay: 0 }.merge(login).merge(options))
end

def same(got, expected)
  raise "#{got.inspect[0, 300]} instead of #{expected.inspect[0, 300]}" unless got == expected
end

def truth(got)
  raise "#{got.inspect} is not true" unless got
end

def fails(*kinds)
  yield
rescue *kinds => e
  e
else
  raise 'no error'
end

def wait_until(what)
  ends = Time.now + 20
  until yield
    raise "not within 20 s: #{what}" if Time.now > ends

    sleep 0.02
  end
end

# Seconds that a value has left.
def ttl(key)
  return nil if OPTIONS['username']

  TCPSocket.open('127.0.0.1', PORT.to_i) do |s|
    s.write("mg #{key} t\r\n")
    s.gets[/\AHD t(-?\d+)/, 1].to_i
  end
end

ALL_BYTES = (0..255).to_a.pack('C*')
NASTY = (ALL_BYTES + "\r\nEND\r\nVALUE x 0 1\r\n\0".b + ALL_BYTES.reverse).b
RAW = { raw: true }.freeze

TESTS = {
  storage: lambda do
    c = client
    same c.get('s'), nil
    same c.replace('s', 'x', 0), 0 # the CAS of nothing
    same c.delete('s'), nil
    truth c.add('s', 'one', 0)
    same c.add('s', 'two', 0), false
    same c.get('s'), 'one'
    truth c.replace('s', 'new', 0)
    truth c.set('s', { 'a' => [1, nil, 2.5] })
    same c.get('s'), { 'a' => [1, nil, 2.5] }
    same c.delete('s'), true
    same c.get('s'), nil
  end,
  append: lambda do
    c = client
    same c.append('a', 'x'), false
    same c.prepend('a', 'x'), false
    c.set('a', 'b', 0, RAW)
    same c.append('a', 'c'), true
    same c.prepend('a', 'a'), true
    same c.get('a'), 'abc'
  end,
  values: lambda do
    c = client
    [NASTY, '', "\r\n", 'text é', :symbol, 2**70, 1.5, true, [1, { 'a' => nil }]].each do |value|
      truth c.set('v', value)
      same c.get('v'), value
    end
    truth c.set('v', NASTY, 0, RAW)
    same c.get('v', RAW), NASTY
    [0, 1, 1000, 8192, 100_000, (1 << 20) - 4096].each do |size|
      value = 'x' * size
      truth c.set('v', value, 0, RAW)
      same c.get('v', RAW), value
    end
  end,
  too_large: lambda do
    c = client(compress: false)
    c.set('t', 'old', 0, RAW)
    # It looks at the size itself.
    fails(Dalli::ValueOverMaxSize) { c.set('t', 'x' * ((1 << 20) + 1), 0, RAW) }
    same c.get('t'), 'old'
    d = client(compress: false, value_max_bytes: 8 << 20)
    error = fails(Dalli::DalliError) { d.set('t', 'x' * ((1 << 20) + 1), 0, RAW) }
    truth error.message.include?('Value too large')
    same d.get('t'), nil
    truth d.set('t', 'new', 0, RAW)
    same d.get('t'), 'new'
  end,
  compression: lambda do
    c = client(compress: true, compression_min_size: 100)
    value = 'compress me ' * 100_000
    truth c.set('c', value)
    same c.get('c'), value
    truth client(compress: false).get('c') == value
  end,
  counters: lambda do
    c = client
    same c.incr('n', 1), nil
    same c.decr('n', 1), nil
    same c.incr('n', 1, 1000, 10), 10
    truth((1..1000).cover?(ttl('n'))) if ttl('n')
    same c.incr('n', 5, 5000, 100), 15
    truth((1..1000).cover?(ttl('n'))) if ttl('n')
    same c.decr('n', 5), 10
    same c.decr('n', 100), 0
    same c.incr('n', 0), 0
    same c.decr('m', 1, 0, 7), 7
    same c.get('n', RAW).to_i, 0
    c.set('n', (2**64 - 1).to_s, 0, RAW)
    same c.incr('n', 3), 2
    c.set('n', 'text', 0, RAW)
    fails(Dalli::DalliError) { c.incr('n', 1) }
    fails(ArgumentError) { c.incr('n', -1) }
  end,
  expiry: lambda do
    c = client(expires_in: 1000)
    c.set('e', 'v')
    truth((900..1000).cover?(ttl('e'))) if ttl('e')
    c.set('e', 'v', 3600 * 24 * 60)
    truth ttl('e') > 3600 * 24 * 59 if ttl('e')
    same c.touch('e', 100), true
    truth((1..100).cover?(ttl('e'))) if ttl('e')
    same c.gat('e', 2000), 'v'
    truth ttl('e') > 1000 if ttl('e')
    same c.touch('absent', 1), nil
    same c.gat('absent', 1), nil
    c.set('short', 'v', 1)
    wait_until('it expires') { c.get('short').nil? }
  end,
  multi_get: lambda do
    c = client
    names = (0...1000).map { |n| "g#{n}" }
    names.each { |name| c.set(name, "value #{name}" * (name.size % 3)) }
    same c.get_multi('absent', *names), names.to_h { |name| [name, "value #{name}" * (name.size % 3)] }
    same c.get_multi('absent', 'none'), {}
    yielded = {}
    c.get_multi(names.first(10)) { |key, value| yielded[key] = value }
    same yielded.keys.sort, names.first(10).sort
    with_cas = c.get_multi_cas(*names.first(3))
    truth(with_cas.values.all? { |value, cas| value && cas.positive? })
  end,
  quiet: lambda do
    c = client
    c.set('q0', 'there')
    c.multi do
      500.times { |n| c.set("q#{n}", "v#{n}") }
      c.add('q0', 'not this')
      c.add('q500', 'new')
      c.replace('q1', 'replaced')
      c.replace('absent', 'x')
      c.delete('q2')
      c.delete('absent')
    end
    same c.get('q0'), 'v0'
    same c.get('q1'), 'replaced'
    same c.get('q2'), nil
    same c.get('q499'), 'v499'
    same c.get('q500'), 'new'
    c.multi do
      c.set('q1', 'in order')
      c.set('q1', 'the last')
    end
    same c.get('q1'), 'the last'
  end,
  cas: lambda do
    c = client
    same c.get_cas('k'), [nil, 0]
    same c.cas('k') { raise 'no value' }, nil
    truth(c.cas!('k') { |old| old.nil? && 'first' })
    value, cas = c.get_cas('k')
    same value, 'first'
    truth cas.positive?
    newer = c.set_cas('k', 'second', cas)
    truth newer && newer != cas
    same c.set_cas('k', 'third', cas), false
    truth c.replace_cas('k', 'fourth', newer)
    same c.replace_cas('k', 'fifth', newer), false
    same c.delete_cas('k', newer), false
    _, cas = c.get_cas('k')
    same c.delete_cas('k', cas), true
    same c.replace_cas('k', 'x', cas), 0
    c.set('k', 1)
    truth(c.cas('k') { |old| old + 1 })
    same c.cas('k') { |old| client.set('k', 100) && old + 1 }, false
    same c.get('k'), 100
  end,
  fetch: lambda do
    c = client(cache_nils: true)
    same c.fetch('f', 100) { 'computed' }, 'computed'
    same c.fetch('f') { raise 'again' }, 'computed'
    same c.fetch('nil') { nil }, nil
    same c.fetch('nil') { raise 'again' }, nil
  end,
  namespace: lambda do
    c = client(namespace: 'space')
    c.set('key', 'v')
    same client.get('space:key'), 'v'
    same c.get_multi('key', 'absent'), { 'key' => 'v' }
    long = 'k' * 400
    c.set(long, 'long')
    same c.get(long), 'long'
    same c.get_multi(long).values, ['long']
    c.set('with blanks', 'v')
    same c.get('with blanks'), 'v'
    fails(ArgumentError) { c.get('') }
  end,
  statistics: lambda do
    c = client
    truth c.version[ADDRESS].start_with?('1.6.')
    all = c.stats[ADDRESS]
    truth all.size > 40 && all['pid'].to_i.positive?
    truth c.stats(:settings)[ADDRESS]['maxconns'].to_i.positive?
    truth c.stats(:items)[ADDRESS].is_a?(Hash)
    truth c.stats(:slabs)[ADDRESS].is_a?(Hash)
    truth c.reset_stats
    same c.stats[ADDRESS]['get_hits'], '0'
    truth c.alive!
  end,
  reset: lambda do
    c = client
    c.set('r', 'v')
    c.reset
    same c.get('r'), 'v'
    c.close
    same c.get('r'), 'v'
    fork_free = Thread.new { client.get('r') }
    same fork_free.value, 'v'
  end,
  flush: lambda do
    c = client
    c.set('x', 'v')
    truth c.flush
    same c.get('x'), nil
    c.set('x', 'again')
    same c.get('x'), 'again'
    truth c.flush_all
  end,
}.freeze

wanted = OPTIONS['tests'] ? OPTIONS['tests'].split(',').map(&:to_sym) : TESTS.keys
wanted.each do |name|
  TESTS.fetch(name).call
  puts name
rescue StandardError => e
  $stderr.puts "#{name}: #{e.class}: #{e.message}\n#{e.backtrace.first(4).join("\n")}"
  exit 1
end
