-- leave: a router stops on purpose.
--
-- ARGV     3 router
-- Replies  DONE
local B = brakes()

local function main()
  B.present()
  check(POD .. ':routers', 'hash')
  redis.call('HDEL', POD .. ':routers', ARGV[3])
  return { 'DONE' }
end

return run(main)
