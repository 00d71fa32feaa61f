-- routers: every heartbeat of late; those that are older are removed, and what nobody can read too.
--
-- ARGV     3 how old one may be (microseconds)
-- Replies  ROUTERS now router heartbeat router heartbeat...   a heartbeat is 'microseconds json'
local B = brakes()

local function main()
  B.present()
  local t = now()
  local flat = read('HGETALL', POD .. ':routers')
  local reply, old = { 'ROUTERS', int(t) }, {}
  for i = 1, #flat, 2 do
    local at = tonumber(string.match(flat[i + 1], '^(%d+) ') or '')
    if at and at >= t - tonumber(ARGV[3]) then
      reply[#reply + 1] = flat[i]
      reply[#reply + 1] = flat[i + 1]
    else
      old[#old + 1] = flat[i]
    end
  end
  for _, router in ipairs(old) do redis.call('HDEL', POD .. ':routers', router) end
  return reply
end

return run(main)
