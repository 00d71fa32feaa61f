-- release: held -> released, once; the units go back. A provisional hold too: whoever names its id was promised it.
-- An expired one becomes released, and nothing moves.
--
-- ARGV     3 id, 4 shop, 5 token of this call
-- Replies  RELEASED record was_expired   this call released it ('1': it had expired before)
--          REPLAY record was_expired     released before
--          CONFLICT state                claimed, refused or rejected
--          BUSY                          a claim of it is under way
--          NOTFOUND                      no record, another shop's, or past its retention
local function main()
  local id, shop, token = ARGV[3], ARGV[4], ARGV[5]
  fence()
  local t = now()
  local key = resKey(id)
  local r = record(id)
  if not r or r.shop ~= shop then return { 'NOTFOUND' } end
  if r.state == 'claiming' then return { 'BUSY' } end
  local purge = number(key, r, 'purge_at')
  if purge <= t then return { 'NOTFOUND' } end
  if r.state == 'released' then
    local expired = r.expired_at and '1' or '0'
    return { r.by == token and 'RELEASED' or 'REPLAY', flat(id), expired }
  end
  if r.state ~= 'held' and r.state ~= 'provisional' and r.state ~= 'expired' then return { 'CONFLICT', r.state } end

  local book = newBook()
  local list = {}
  if takes(r) then list = lines(book, key, shop, r.lines) end
  fetch(book, false)
  known(book, list)
  back(book, list)
  check(EXP, 'zset')
  local writes = settle(book)

  write(writes)
  redis.call('HSET', key, 'state', 'released', 'released_at', int(t), 'by', token)
  redis.call('HDEL', key, 'seen')
  redis.call('ZADD', EXP, int(purge), id)
  return { 'RELEASED', flat(id), r.state == 'expired' and '1' or '0' }
end

return run(main)
