-- beat: a router's heartbeat. A suspect Redis, and one without a fence, take none.
--
-- ARGV     3 router, 4 what it tells of itself, as JSON
-- Replies  FENCE fence
local function main()
  local f = present()
  if f[1] ~= '' and f[7] ~= '1' then
    check(ROUTERS, 'hash')
    redis.call('HSET', ROUTERS, ARGV[3], int(now()) .. ' ' .. ARGV[4])
  end
  return with('FENCE', f)
end

return run(main)
