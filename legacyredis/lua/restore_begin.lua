-- restore_begin: from here on only the restore writes, until it has ended. One at a time; its lease is renewed by each
-- of its writes, and when it runs out another can begin.
--
-- ARGV     1 epoch, 2 stage: the highest fence that the caller has seen; 3 token, 4 '1': of a healthy Redis too
-- Replies  FENCE fence      begun; the fence as it was found
--          HEALTHY fence    nothing to restore
--          RESTORING        another one is under way
local B = brakes()

local function main()
  check(FENCE, 'hash')
  local f = B.whole()
  local token = redis.pcall('GET', POD .. ':restore')
  if token and token ~= ARGV[3] then return { 'RESTORING' } end
  if f[1] ~= '' and not tonumber(f[1]) then corrupt(FENCE, 'has no number for an epoch') end
  if f[1] ~= '' and f[7] ~= '1' and token ~= ARGV[3] and ARGV[4] ~= '1' then
    local epoch, seen = tonumber(f[1]), tonumber(ARGV[1])
    if epoch > seen or epoch == seen and f[2] == ARGV[2] then return B.with('HEALTHY', f) end
  end
  redis.call('HSET', FENCE, 'suspect', '1')
  redis.call('SET', POD .. ':restore', ARGV[3], 'PX', LEASE)
  return B.with('FENCE', f)
end

return run(main)
