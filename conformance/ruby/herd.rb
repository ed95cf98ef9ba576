# One of several processes that ask for the same ten keys at once. Arguments: PORT, and "first" for the one that computes: it waits
# until the others wait.
# frozen_string_literal: true

require 'dalli'
require 'socket'

$stdout.sync = true
port, first = ARGV
keys = (1..10).map { |n| "page:#{n}" }
c = Dalli::Client.new("127.0.0.1:#{port}", socket_timeout: 40)

def held(port)
  TCPSocket.open('127.0.0.1', port.to_i) do |s|
    s.write("stats cattlegrid\r\n")
    s.each_line { |line| return Regexp.last_match(1).to_i if line =~ /\ASTAT held (\d+)/ }
  end
end

found = c.get_multi(keys)
missed = keys - found.keys
puts "missed #{missed.size}"
raise 'wrong values' unless found.all? { |key, value| value == "of #{key}" }

if first
  ends = Time.now + 60
  sleep 0.02 until held(port) == 80 || Time.now > ends
end
missed.each { |key| c.set(key, "of #{key}") }
puts "computed #{missed.size}"
