-- due: what needs attention now, oldest first.
--
-- ARGV     3 how many at most
-- Replies  DUE member...
local function main()
  fence()
  check(EXP, 'zset')
  local members = redis.call('ZRANGEBYSCORE', EXP, '-inf', int(now()), 'LIMIT', '0', ARGV[3])
  table.insert(members, 1, 'DUE')
  return members
end

return run(main)
