-- connect: the first script of every connection. A server that is not the one that wrote the fence may have lost
-- writes: it is suspect from here on, until it has been restored.
--
-- Replies  DONE       the same server, or there is no fence to tell
--          SUSPECT    another one
local B = brakes()

local function main()
  local f = read('HMGET', FENCE, 'epoch', 'server', 'suspect')
  if not f[1] or f[2] == B.server() then return { 'DONE' } end
  if f[3] ~= '1' then
    B.evenIfFull()
    redis.call('HSET', FENCE, 'suspect', '1')
  end
  return { 'SUSPECT' }
end

return run(main)
