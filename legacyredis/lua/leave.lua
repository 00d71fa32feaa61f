-- leave: a router stops on purpose.
--
-- ARGV     3 router
-- Replies  DONE
local function main()
  present()
  check(ROUTERS, 'hash')
  redis.call('HDEL', ROUTERS, ARGV[3])
  return { 'DONE' }
end

return run(main)
