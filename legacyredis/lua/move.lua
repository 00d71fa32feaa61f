-- move: change the stage, if the fence is still the caller's. While the latch is there only the way back to shadow is
-- open. Whether the step is one of a pod's is the caller's to know.
--
-- ARGV     3 stage to go to, 4 audit record as JSON, 5 token of this call
-- Replies  FENCE fence      moved
--          LATCHED
local B = brakes()

local function main()
  local f = B.present()
  if f[1] ~= '' and f[7] ~= '1' and redis.call('HGET', FENCE, MINE) == ARGV[5] then return B.with('FENCE', f) end
  if f[1] ~= ARGV[1] or f[2] ~= ARGV[2] or f[7] == '1' then refuse(f) end
  if f[9] == '1' and ARGV[3] ~= 'shadow' then return { 'LATCHED' } end
  local after = int(tonumber(f[1]) + 1)
  B.evenIfFull()
  redis.call('HSET', FENCE, 'epoch', after, 'stage', ARGV[3], MINE, ARGV[5])
  B.audit(ARGV[4], f[1], f[2], after, ARGV[3])
  return B.with('FENCE', B.whole())
end

return run(main)
