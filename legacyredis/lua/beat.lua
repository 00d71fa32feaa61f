-- beat: a router's heartbeat. A suspect Redis, and one without a fence, take none.
--
-- ARGV     3 router, 4 what it tells of itself, as JSON
-- Replies  FENCE fence
local B = brakes()

local function main()
  local f = B.present()
  if f[1] ~= '' and f[7] ~= '1' then
    check(POD .. ':routers', 'hash')
    redis.call('HSET', POD .. ':routers', ARGV[3], int(now()) .. ' ' .. ARGV[4])
  end
  return B.with('FENCE', f)
end

return run(main)
