# Dalli with a namespace, or ActiveSupport's MemCacheStore. Arguments: PORT, a plan (load.py), "dalli", "store" (without `race_condition_ttl`) or "race"
# (with it).
# frozen_string_literal: true

require 'json'
require 'dalli'
require 'active_support'
require 'active_support/cache'
require 'active_support/cache/mem_cache_store'
require 'active_support/core_ext/numeric/time'

PORT, PLAN, KIND = ARGV[0], JSON.parse(ARGV[1]), ARGV[2]

def value_of(key)
  "the value of #{key} " * 20
end

def sleep_until(moment)
  left = moment - Time.now.to_f
  sleep left if left.positive?
end

# Dalli, which knows nothing of a store.
class Plain
  def initialize
    @client = Dalli::Client.new("127.0.0.1:#{PORT}", namespace: 'app', threadsafe: true)
  end

  def fetch(key, ttl)
    @client.fetch(key, ttl) { yield [key] and value_of(key) }
  end

  def fetch_multi(keys, ttl)
    found = @client.get_multi(*keys)
    missing = keys - found.keys
    unless missing.empty?
      yield missing
      @client.multi { missing.each { |key| @client.set(key, value_of(key), ttl) } }
    end
    keys.map { |key| found.fetch(key) { value_of(key) } }
  end

  def delete(key)
    @client.delete(key)
  end
end

class Store
  def initialize
    @race = KIND == 'race' ? { race_condition_ttl: 10 } : {}
    @store = ActiveSupport::Cache::MemCacheStore.new("127.0.0.1:#{PORT}", namespace: 'app')
  end

  def fetch(key, ttl)
    @store.fetch(key, expires_in: ttl, **@race) { yield [key] and value_of(key) }
  end

  def fetch_multi(keys, ttl)
    found = @store.read_multi(*keys)
    missing = keys - found.keys
    unless missing.empty?
      yield missing
      @store.write_multi(missing.to_h { |key| [key, value_of(key)] }, expires_in: ttl)
    end
    keys.map { |key| found.fetch(key) { value_of(key) } }
  end

  def delete(key)
    @store.delete(key)
  end
end

def connect
  KIND == 'dalli' ? Plain.new : Store.new
end

def act(results, lock)
  client = connect
  PLAN['steps'].each do |step|
    result = results[step['name']]
    sleep_until(PLAN['start'] + step['at'])
    compute = lambda do |keys|
      lock.synchronize { result['computed'] += keys.size }
      sleep step['compute']
      true
    end
    loop do
      begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      error = nil
      begin
        keys = step['keys']
        got = keys.size == 1 ? [client.fetch(keys[0], step['ttl'], &compute)] : client.fetch_multi(keys, step['ttl'], &compute)
        error = "wrong: #{got.inspect[0, 200]}" if got != keys.map { |key| value_of(key) }
      rescue StandardError => e
        error = "#{e.class}: #{e.message[0, 200]}"
      end
      took = (Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun) * 1000
      lock.synchronize do
        result['ms'] << took
        result['errors'] << error if error
      end
      sleep step['think']
      break if Time.now.to_f >= PLAN['start'] + step['at'] + step['seconds']
    end
  end
end

def process
  results = PLAN['steps'].to_h { |step| [step['name'], { 'computed' => 0, 'ms' => [], 'errors' => [] }] }
  lock = Mutex.new
  Array.new(PLAN['threads']) { Thread.new { act(results, lock) } }.each(&:join)
  results
end

def deleter
  client = connect
  PLAN['steps'].each do |step|
    every = step['delete_every'] or next
    at = PLAN['start'] + step['at'] + every
    while at < PLAN['start'] + step['at'] + step['seconds']
      sleep_until(at)
      step['keys'].each { |key| client.delete(key) }
      at += every
    end
  end
  {}
end

def in_process
  reader, writer = IO.pipe
  fork do
    reader.close
    writer.write(JSON.generate(yield))
    writer.close
    exit!(true)
  end
  writer.close
  reader
end

readers = Array.new(PLAN['processes']) { in_process { process } } << in_process { deleter }
merged = Hash.new { |all, name| all[name] = { 'computed' => 0, 'ms' => [], 'errors' => [] } }
readers.each do |reader|
  JSON.parse(reader.read).each do |name, one|
    one.each { |line, value| merged[name][line] += value }
  end
end
puts JSON.generate(merged)
