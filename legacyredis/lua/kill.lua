-- kill: set the latch and fold it. A second kill changes nothing. A Redis in doubt (suspect, or without a fence) gets
-- the latch all the same, whatever its stage: it counts as soon as that Redis has been restored.
--
-- ARGV     3 reason, 4 audit record as JSON
-- Replies  FENCE fence      killed, now or before
--          REFUSED fence    legacy or complete: there is nothing to flee from, or to
--          NOFENCE|REGRESSED fence    in doubt; the latch is set
local B = brakes()

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
  end
  if doubt then return B.with(f[1] == '' and 'NOFENCE' or 'REGRESSED', f) end
  return B.with('FENCE', f)
end

return run(main)
