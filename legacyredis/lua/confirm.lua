-- confirm: MySQL has agreed to a provisional hold of this epoch: it is held. Anything else is left as it is.
--
-- ARGV     3 id
-- Replies  DONE record    as it is now
--          NOTFOUND
local function main()
  local id = ARGV[3]
  fence()
  local r = record(id)
  if not r then return { 'NOTFOUND' } end
  if r.state == 'provisional' and r.epoch == ARGV[1] then redis.call('HSET', resKey(id), 'state', 'held') end
  return { 'DONE', flat(id) }
end

return run(main)
