-- postpone: a member that cannot be handled comes up again later, and does not stand in the way of the rest.
--
-- ARGV     3 member, 4 how much later (microseconds)
-- Replies  DONE
local function main()
  fence()
  check(EXP, 'zset')
  redis.call('ZADD', EXP, 'XX', int(now() + tonumber(ARGV[4])), ARGV[3])
  return { 'DONE' }
end

return run(main)
