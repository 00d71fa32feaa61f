-- fence_read: the fence as it is, latch and suspicion included. Changes nothing.
--
-- Replies  FENCE fence
local function main() return with('FENCE', whole()) end

return run(main)
