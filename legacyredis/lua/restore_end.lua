-- restore_end: the last step of a restore. The fence is the new one, and this server's; a latch that has to be folded is,
-- in the same step.
--
-- ARGV     3 epoch, 4 stage, 5 '1': a kill was lost, 6 its reason, 7 audit record as JSON
-- Replies  FENCE fence
--          NOTABOVE fence    the epoch is not above the one that is here
local B = brakes()

local function main()
  local f = B.whole()
  if f[1] ~= '' and redis.call('HGET', FENCE, MINE) == ARGV[2] then return B.with('FENCE', f) end
  lease()
  if f[1] ~= '' and tonumber(ARGV[3]) <= tonumber(f[1]) then return B.with('NOTABOVE', f) end
  -- Where the fence was lost, so was the incarnation: it was never above the epoch, so the new epoch is above it.
  local incarnation = f[1] == '' and ARGV[3] or int((tonumber(f[3]) or 0) + 1)
  redis.call('HSET', FENCE, 'epoch', ARGV[3], 'stage', ARGV[4], 'incarnation', incarnation,
    'incarnation_epoch', ARGV[3], 'server', B.server(), 'suspect', '0', 'frozen', f[6] == '1' and '1' or '0')
  B.audit(ARGV[7], f[1], f[2], ARGV[3], ARGV[4])
  if ARGV[5] == '1' and f[9] == '0' then redis.call('SET', POD .. ':kill', ARGV[6]) end
  B.present()
  redis.call('HSET', FENCE, MINE, ARGV[2])
  redis.call('DEL', POD .. ':restore')
  restoring = nil
  return B.with('FENCE', B.whole())
end

return run(main)
