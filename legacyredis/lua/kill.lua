-- kill: set the latch and fold it. A second kill changes nothing; it is written down, unless the last
-- kill in the audit is of the same latch and gives the same reason. A Redis in doubt (suspect, or without a fence) gets
-- the latch all the same, whatever its stage: it counts as soon as that Redis has been restored.
--
-- ARGV     3 reason, 4 audit record as JSON, 5 the same, saying that it was killed before (empty: not written down)
-- Replies  FENCE fence      killed, now or before
--          REFUSED fence    legacy or complete: there is nothing to flee from, or to
--          NOFENCE|REGRESSED fence    in doubt; the latch is set
local B = brakes()
local MARK = '"detail":"killed before: '

-- written tells whether the last kill of the audit is of this latch, and gave this reason. A list that somebody has
-- spoilt is not read, and one that is full of something else is not searched to its end.
local function written(latch, epoch, reason)
  local tail = redis.pcall('LRANGE', POD .. ':audit', -20, -1)
  if tail.err then return true end
  for i = #tail, 1, -1 do
    local ok, r = pcall(cjson.decode, tail[i])
    if ok and type(r) == 'table' then
      if r.action == 'rearm' then return false end
      if r.action == 'kill' then
        return type(r.after) == 'table' and tostring(r.after.epoch) == epoch and r.reason == reason
      end
    end
  end
  return false
end

local function main()
  local f = B.present()
  local doubt = f[1] == '' or f[7] == '1'
  if f[9] == '0' then
    if not doubt and f[2] ~= 'shadow' and not folds(f[2]) then return B.with('REFUSED', f) end
    B.evenIfFull()
    redis.call('SET', POD .. ':kill', ARGV[3])
    if not doubt and folds(f[2]) then
      B.fold(f[1], f[2], ARGV[4])
    else
      B.audit(ARGV[4], f[1], f[2], f[1], f[2])
    end
    f = B.whole()
  elseif not doubt and f[2] == 'shadow' and ARGV[5] ~= '' and not written(f[10], f[1], ARGV[3]) then
    B.evenIfFull()
    local latch = string.sub(cjson.encode(f[10]), 2, -2)
    local at = string.find(ARGV[5], MARK, 1, true) + #MARK
    B.audit(string.sub(ARGV[5], 1, at - 1) .. latch .. string.sub(ARGV[5], at), f[1], f[2], f[1], f[2])
  end
  if doubt then return B.with(f[1] == '' and 'NOFENCE' or 'REGRESSED', f) end
  return B.with('FENCE', f)
end

return run(main)
