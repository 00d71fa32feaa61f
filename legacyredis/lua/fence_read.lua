-- fence_read: the fence as it is, latch and suspicion included. Changes nothing.
--
-- Replies  FENCE fence
local B = brakes()

local function main() return B.with('FENCE', B.whole()) end

return run(main)
