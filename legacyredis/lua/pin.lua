-- pin: step 1 of a claim. held -> claiming; a pin is never undone by time. While Redis decides, late is judged here,
-- once, and stored. A pin that is set while MySQL decides, or by force, is left unjudged ('judged' is 0 in the record):
-- the ledger's transaction judges it, whoever comes to run it. A provisional hold is pinned like a held one: whoever
-- names its id was promised it.
--
-- ARGV     3 id, 4 shop, 5 late policy ('force' or 'refuse'), 6 lease (microseconds), 7 token of this call,
--          8... fields and values of a record that the ledger's side knows as held (adopt), or nothing
-- Replies  PINNED record     this call pinned it
--          JOINED record     another call has it pinned
--          REPLAY record     claimed or refused before
--          CONFLICT state    released or rejected
--          UNKNOWN           no record, or past its retention; or MySQL decides and has to say whether it ended
--          OTHERSHOP         a record of another shop
--          UNKNOWNBUCKET shop:item:group

-- adopted gives the record that the caller brought, nil if it brought none.
local function adopted()
  if #ARGV < 8 then return nil end
  local r = {}
  for i = 8, #ARGV, 2 do r[ARGV[i]] = ARGV[i + 1] end
  return r
end

-- judge enters in the book what a late pin does to the counters. has: the units are taken already. It gives whether
-- some were taken that were not there, and whether the claim is to be refused.
local function judge(book, list, has)
  if has then back(book, list) end
  local short = not enough(book, list)
  if short and ARGV[5] == 'refuse' then return false, true end
  take(book, list)
  return short, false
end

-- found gives the answer that a record which is there stands for, nil if it is to be pinned.
local function found(id, r, t, shop, token, brought)
  local state = r.state
  if r.shop ~= shop then return { 'OTHERSHOP' } end
  if state == 'claiming' then return { r.by == token and 'PINNED' or 'JOINED', flat(id) } end
  if number(resKey(id), r, 'purge_at') <= t then return { 'UNKNOWN' } end
  if state == 'claimed' or state == 'refused' then return { 'REPLAY', flat(id) } end
  if state ~= 'released' and state ~= 'rejected' then return nil end
  if not mysqlDecides() then return { 'CONFLICT', state } end
  if not brought then return { 'UNKNOWN' } end
  return nil
end

local function main()
  local id, shop, lease, token = ARGV[3], ARGV[4], tonumber(ARGV[6]), ARGV[7]
  fence()
  local t = now()
  local key = resKey(id)
  local r, brought = record(id), adopted()
  local isNew = not r
  if r then
    local answer = found(id, r, t, shop, token, brought)
    if answer then return answer end
  else
    r = brought
    if not r then return { 'UNKNOWN' } end
  end
  local judged = not isNew and not mysqlDecides()
  local has = takes(r) and not isNew
  local late = judged and (r.state == 'expired' or number(key, r, 'expires_at') <= t)
  local forced, refuse, writes = false, false, {}
  if late or not has then
    local book = newBook()
    local list = lines(book, key, shop, r.lines)
    fetch(book, false)
    for _, l in ipairs(list) do
      if not book.avail[l[1]] then return { 'UNKNOWNBUCKET', l[1] } end
    end
    if late then
      forced, refuse = judge(book, list, has)
    else
      forced = not enough(book, list)
      take(book, list)
    end
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
  redis.call('HSET', key, 'state', 'claiming', 'outcome', 'granted', 'pinned_at', int(t), 'pin_until', deadline,
    'by', token, 'late', late and '1' or '0', 'forced', forced and '1' or '0', 'refuse', refuse and '1' or '0')
  if not judged then redis.call('HSET', key, 'judged', '0') end
  redis.call('ZADD', EXP, deadline, id)
  return { 'PINNED', flat(id) }
end

return run(main)
