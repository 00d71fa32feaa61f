-- pin: step 1 of a claim. held -> claiming; a pin is never undone by time. Late is judged here, once, and stored.
--
-- ARGV     3 id, 4 shop, 5 late policy ('force' or 'refuse'), 6 lease (microseconds), 7 token of this call,
--          8... fields and values of a record that only the ledger knows (adopt), or nothing
-- Replies  PINNED record     this call pinned it
--          JOINED record     another call has it pinned
--          REPLAY record     claimed or refused before
--          CONFLICT state    released or rejected
--          BUSY              provisional: nobody was promised it yet
--          UNKNOWN           no record, or past its retention
--          OTHERSHOP         a record of another shop
--          UNKNOWNBUCKET shop:item:group

-- adopted gives the record that the caller brought, nil if it brought none.
local function adopted()
  if #ARGV < 8 then return nil end
  local r = {}
  for i = 8, #ARGV, 2 do r[ARGV[i]] = ARGV[i + 1] end
  return r
end

-- judge enters in the book what the pin does to the counters. has: the units are taken already. It gives whether
-- some were taken that were not there, and whether the claim is to be refused.
local function judge(book, list, has, late)
  if late and has then
    back(book, list)
    has = false
  end
  if has then return false, false end
  local short = not enough(book, list)
  if short and late and ARGV[5] == 'refuse' then return false, true end
  take(book, list)
  return short, false
end

local function main()
  local id, shop, lease, token = ARGV[3], ARGV[4], tonumber(ARGV[6]), ARGV[7]
  fence()
  local t = now()
  local key = resKey(id)
  local r = record(id)
  local isNew = false
  if r and r.shop ~= shop then return { 'OTHERSHOP' } end
  if r and r.state ~= 'claiming' and number(key, r, 'purge_at') <= t then return { 'UNKNOWN' } end
  if not r then
    r, isNew = adopted(), true
    if not r then return { 'UNKNOWN' } end
  elseif r.state == 'claiming' then
    return { r.by == token and 'PINNED' or 'JOINED', flat(id) }
  elseif r.state == 'claimed' or r.state == 'refused' then
    return { 'REPLAY', flat(id) }
  elseif r.state == 'released' or r.state == 'rejected' then
    return { 'CONFLICT', r.state }
  elseif r.state == 'provisional' then
    return { 'BUSY' }
  end

  local late = r.state == 'expired' or number(key, r, 'expires_at') <= t
  local forced, refuse, writes = false, false, {}
  if late or isNew then
    local book = newBook()
    local list = lines(book, key, shop, r.lines)
    fetch(book, false)
    for _, l in ipairs(list) do
      if not book.avail[l[1]] then return { 'UNKNOWNBUCKET', l[1] } end
    end
    forced, refuse = judge(book, list, takes(r) and not isNew, late)
    writes = settle(book)
  end
  check(EXP, 'zset')
  check(CREATED, 'zset')
  local index = nil
  if isNew and r.key ~= '' then
    index = indexKey(shop, r.key)
    if read('GET', index) then
      r.key, index = '', nil -- another record has the key
    end
  end

  write(writes)
  if isNew then
    for field, value in pairs(r) do redis.call('HSET', key, field, value) end
    redis.call('ZADD', CREATED, '0', id)
    if index then redis.call('SET', index, id) end
  end
  local deadline = int(t + lease)
  redis.call('HSET', key, 'state', 'claiming', 'pinned_at', int(t), 'pin_until', deadline, 'by', token,
    'late', late and '1' or '0', 'forced', forced and '1' or '0', 'refuse', refuse and '1' or '0')
  redis.call('ZADD', EXP, deadline, id)
  return { 'PINNED', flat(id) }
end

return run(main)
