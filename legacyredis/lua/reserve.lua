-- reserve: decide a reservation, all lines or none, and store the decision, rejections too. In handover a grant is
-- only Redis's half: provisional, units taken, nobody answered.
--
-- ARGV     3 id, 4 shop, 5 key, 6 hash of the request, 7 ttl, 8 retention (microseconds),
--          9 lines 'item:group:quantity,...', 10 '1' if a brake is set that this server does not carry
-- Replies  GRANTED now seen              seen: what was available before, one figure a line, 'n,n,...'
--          REJECTED now seen shortages   shortages 'item:group:requested:available,...'
--          SAME id record                nobody was answered before: this very id was decided and the first reply was
--                                        lost, or the key stands for a provisional hold (which is given as it is in the
--                                        epoch that made it, and decided afresh in a later one)
--          REPLAY id record              the key was used before with the same request
--          KEYCONFLICT                   the key (or the id) was used with another request
--          BUSY                          the key's record is past its retention, and a claim of it is under way
--          FROZEN                        no new decisions
--          UNKNOWNBUCKET shop:item:group

local function grantState() return ARGV[2] == 'handover' and 'provisional' or 'held' end

-- again answers for a provisional hold. One of an older epoch is decided afresh: its units are counted as taken
-- already, so it is granted unless somebody's promise lacks them. Past its expiry it has ended.
local function again(id, r, t)
  local key = resKey(id)
  local expires, purge = number(key, r, 'expires_at'), number(key, r, 'purge_at')
  local due = expires <= t
  if not due and r.epoch == ARGV[1] then return { 'SAME', id, flat(id) } end
  local book = newBook()
  local list = lines(book, key, r.shop, r.lines)
  if not due and frozenHere(list) then return { 'FROZEN' } end
  fetch(book, false)
  known(book, list)
  local seen, short = {}, {}
  for i, l in ipairs(list) do
    local available = book.avail[l[1]]
    seen[i] = int(available + l[2])
    if available < 0 then
      short[#short + 1] = bucketOf(l[1]) .. ':' .. int(l[2]) .. ':' .. int(math.max(0, available + l[2]))
    end
  end
  local state, outcome = grantState(), 'granted'
  if due then state = 'expired' elseif #short > 0 then state, outcome = 'rejected', 'rejected' end
  if due or #short > 0 then back(book, list) end
  check(EXP, 'zset')
  local writes = settle(book)

  write(writes)
  redis.call('HSET', key, 'state', state, 'outcome', outcome, 'epoch', ARGV[1], 'shortages', table.concat(short, ','),
    'seen', table.concat(seen, ','))
  if due then redis.call('HSET', key, 'expired_at', int(t)) end
  redis.call('ZADD', EXP, int(state == grantState() and expires or purge), id)
  return { due and 'REPLAY' or 'SAME', id, flat(id) }
end

local function main()
  local id, shop, key, request = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
  local ttl, retention = tonumber(ARGV[7]), tonumber(ARGV[8])
  fence()
  frozen = frozen or ARGV[10] == '1'
  local t = now()
  local index = indexKey(shop, key)
  local first = read('GET', index)
  local old, oldId = nil, nil
  if first then
    old, oldId = record(first), first
    if old and (old.shop ~= shop or old.key ~= key) then corrupt(index, 'points to a reservation of another key') end
    if old and number(resKey(first), old, 'purge_at') > t then
      if old.hash ~= request then return { 'KEYCONFLICT' } end
      if old.state == 'provisional' then return again(first, old, t) end
      return { first == id and 'SAME' or 'REPLAY', first, flat(first) }
    end
    if old and old.state == 'claiming' then return { 'BUSY' } end
  end
  if first ~= id and record(id) then return { 'KEYCONFLICT' } end

  local book = newBook()
  local asked = lines(book, index, shop, ARGV[9])
  if frozenHere(asked) then return { 'FROZEN' } end
  local freed = {}
  if old and takes(old) then freed = lines(book, resKey(oldId), old.shop, old.lines) end
  fetch(book, false)
  for _, l in ipairs(asked) do
    if not book.avail[l[1]] then return { 'UNKNOWNBUCKET', l[1] } end
  end
  known(book, freed)
  back(book, freed)

  local seen, short = {}, {}
  for i, l in ipairs(asked) do
    local available = book.avail[l[1]]
    seen[i] = int(available)
    if available < l[2] then
      short[#short + 1] = bucketOf(l[1]) .. ':' .. int(l[2]) .. ':' .. int(math.max(0, available))
    end
  end
  local granted = #short == 0
  if granted then take(book, asked) end
  check(CREATED, 'zset')
  check(EXP, 'zset')
  local writes = settle(book)

  if old then remove(oldId, old) end
  write(writes)
  local expires, purge = t + ttl, t + ttl + retention
  local seenText, shortText = table.concat(seen, ','), table.concat(short, ',')
  redis.call('HSET', resKey(id), 'shop', shop, 'key', key, 'hash', request, 'lines', ARGV[9],
    'outcome', granted and 'granted' or 'rejected', 'state', granted and grantState() or 'rejected',
    'shortages', shortText, 'seen', seenText, 'decided_by', 'redis', 'epoch', ARGV[1],
    'created_at', int(t), 'expires_at', int(expires), 'purge_at', int(purge))
  redis.call('SET', index, id)
  redis.call('ZADD', CREATED, '0', id)
  redis.call('ZADD', EXP, int(granted and expires or purge), id)
  if granted then return { 'GRANTED', int(t), seenText } end
  return { 'REJECTED', int(t), seenText, shortText }
end

return run(main)
