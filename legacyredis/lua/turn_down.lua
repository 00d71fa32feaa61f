-- turn_down: MySQL has said no to a provisional hold of this epoch: it is rejected, and its units go back. Anything else
-- is left as it is.
--
-- ARGV     3 id, 4 MySQL's shortages 'item:group:requested:available,...'
-- Replies  DONE record    as it is now
--          NOTFOUND
local function main()
  local id = ARGV[3]
  fence()
  local key = resKey(id)
  local r = record(id)
  if not r then return { 'NOTFOUND' } end
  if r.state ~= 'provisional' or r.epoch ~= ARGV[1] then return { 'DONE', flat(id) } end
  local book = newBook()
  local list = lines(book, key, r.shop, r.lines)
  fetch(book, false)
  known(book, list)
  back(book, list)
  check(EXP, 'zset')
  local purge = int(number(key, r, 'purge_at'))
  local writes = settle(book)

  write(writes)
  redis.call('HSET', key, 'state', 'rejected', 'outcome', 'rejected', 'shortages', ARGV[4])
  redis.call('HDEL', key, 'seen')
  redis.call('ZADD', EXP, purge, id)
  return { 'DONE', flat(id) }
end

return run(main)
