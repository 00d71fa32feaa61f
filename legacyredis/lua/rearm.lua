-- rearm: take the latch away. Latch and epoch are compared in this one step; the epoch goes up, so that nobody goes on
-- by what he knew before.
--
-- ARGV     3 audit record as JSON, 4 token of this call
-- Replies  FENCE fence      rearmed
--          NOTLATCHED
local B = brakes()

local function main()
  local f = B.present()
  if f[1] ~= '' and f[7] ~= '1' and redis.call('HGET', FENCE, MINE) == ARGV[4] then return B.with('FENCE', f) end
  if f[1] ~= ARGV[1] or f[2] ~= ARGV[2] or f[7] == '1' then refuse(f) end
  if f[9] == '0' then return { 'NOTLATCHED' } end
  local after = int(tonumber(f[1]) + 1)
  redis.call('HSET', FENCE, 'epoch', after, MINE, ARGV[4])
  redis.call('DEL', POD .. ':kill')
  B.audit(ARGV[3], f[1], f[2], after, f[2])
  return B.with('FENCE', B.whole())
end

return run(main)
