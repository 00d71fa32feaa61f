-- freeze: set or lift the brake of the pod or of one bucket. Where it is so already nothing changes.
--
-- ARGV     3 bucket 'shop:item:group' (empty: the pod), 4 '1' to set, '0' to lift, 5 audit record as JSON
-- Replies  FENCE fence
local B = brakes()

-- buckets gives the packed list with the bucket in it, or without it.
local function buckets(packed, name, on)
  local out = {}
  for b in string.gmatch(packed, '[^,]+') do
    if b ~= name then out[#out + 1] = b end
  end
  if on then out[#out + 1] = name end
  table.sort(out)
  return table.concat(out, ',')
end

local function main()
  local f = B.present()
  if f[1] == '' or f[7] == '1' then refuse(f) end
  local field, old, new = 'frozen', f[6] == '1' and '1' or '0', ARGV[4]
  if ARGV[3] ~= '' then
    field, old = 'frozen_buckets', f[8]
    new = buckets(old, ARGV[3], ARGV[4] == '1')
  end
  if new == old then return B.with('FENCE', f) end
  B.evenIfFull()
  redis.call('HSET', FENCE, field, new)
  B.audit(ARGV[5], f[1], f[2], f[1], f[2])
  return B.with('FENCE', B.whole())
end

return run(main)
