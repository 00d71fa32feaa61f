-- touch: a write that changes nothing, so that the connection has something whose replication it can wait for.
--
-- Replies  DONE
local B = brakes()

local function main()
  B.present()
  if redis.call('EXISTS', FENCE) == 1 then redis.call('HSET', FENCE, 'waited', int(now())) end
  return { 'DONE' }
end

return run(main)
