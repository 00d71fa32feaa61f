-- fence_init: create the pod's fence in a Redis that holds nothing of it. Never overwrites.
--
-- ARGV     1 epoch, 2 stage: those of the new fence
-- Replies  FENCE fence     as it is now
--          NOTEMPTY key    no fence, but that key is there
local B = brakes()

local function main()
  check(FENCE, 'hash')
  if redis.call('HEXISTS', FENCE, 'epoch') == 0 then
    for _, key in ipairs({ FENCE, POD .. ':restore', CREATED, EXP }) do
      if redis.call('EXISTS', key) == 1 then return { 'NOTEMPTY', key } end
    end
    redis.call('HSET', FENCE, 'epoch', ARGV[1], 'stage', ARGV[2], 'incarnation', '1', 'incarnation_epoch', ARGV[1],
      'server', B.server(), 'frozen', '0')
  end
  return B.with('FENCE', B.whole())
end

return run(main)
