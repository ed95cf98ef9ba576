# Dalli with tags in values, and announced. Argument: PORT. Prints a line for each part that has passed.
# frozen_string_literal: true

require 'dalli'

Dalli.logger.level = Logger::FATAL
DC = Dalli::Client.new("127.0.0.1:#{ARGV[0]}", socket_timeout: 30, compress: true)

def same(got, expected, what)
  raise "#{what}: #{got.inspect[0, 300]} instead of #{expected.inspect[0, 300]}" unless got == expected

  puts what
end

# Soon after the start a value whose miss is not known is not kept if it was invalidated: each is looked for first.
def set(key, value, options = {})
  DC.get(key, options)
  DC.set(key, value, 60, options)
end

long = 'x' * 100_000

# Raw texts up to 4 KB are sent as they are.
set('v:1', "@tags:a,b\nvalue", raw: true)
same(DC.get('v:1', raw: true), 'value', 'a raw text')
DC.delete('@tag:a')
same(DC.get('v:1', raw: true), nil, 'a miss after its invalidation')

# Above that Dalli compresses them; other values are marshalled.
set('v:1', "@tags:a\n#{long}", raw: true)
same(DC.get('v:1', raw: true), "@tags:a\n#{long}", 'the line of a long text was hidden')
set('v:1', "@tags:a\nvalue")
same(DC.get('v:1'), "@tags:a\nvalue", 'the line of a marshalled text was hidden')
same(set('must:1', "@tags:a\nvalue"), false, 'it is refused where the line is required')

# The tags are announced.
value = { user: 7, text: long }
same(set('said:1', value), false, 'a store without an announcement')
same(DC.set('@tags:said:1', 'user:7,product:9', 0, raw: true) ? true : false, true, 'an announcement')
same(set('said:1', value) ? true : false, true, 'a store after it')
same(DC.get('said:1'), value, 'a hash')
DC.delete('@tag:product:9')
same(DC.get('said:1'), nil, 'a miss after an invalidation of what was announced')
