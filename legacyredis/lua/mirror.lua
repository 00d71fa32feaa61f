-- mirror: say what Redis would have answered to an operation of the truth, and store what the truth did. In any order,
-- any number of times: states only move up, units move once. A pin is left alone but for the end of its claim.
--
-- ARGV     3 operation, 4 the truth's decision, 5 replayed, 6 adopt, 7 expected state here ('' any, 'unknown' none),
--          8 MySQL is the truth, 9 something is to be stored ('1' or '0' each), 10 token of this call,
--          11 changes of a claimed record 'shop:item:group:delta:version,...', 12 id,
--          13... fields and values of the truth's record (of an adjustment: bucket, delta, force)
-- Replies  JUDGED decision state flags forced seen shortages record    flags: s stored, b backfilled, o overtaken, l the
--          levels in seen are told; record is the one that is here afterwards, or nothing

local LIVE = { held = true, claiming = true }
local MYSQL_IS_TRUTH, ADOPT = ARGV[8] == '1', ARGV[6] == '1'

local function flagged(j)
  return (j.stored and 's' or '') .. (j.backfilled and 'b' or '') .. (j.overtaken and 'o' or '') .. (j.seen and 'l' or '')
end

local function judged(j, id)
  local r = id and flat(id) or {}
  return { 'JUDGED', j.decision or '', j.state or '', flagged(j), int(j.forced or 0), j.seen or '', j.shortages or '', r }
end

-- keyAlone says what the key's other record would have been answered; nil if nobody has the key.
local function keyAlone(op, holder, t)
  if not holder or number(holder.at, holder, 'purge_at') <= t then return nil end
  if holder.hash ~= op.hash then return { decision = 'key_conflict' } end
  return { decision = holder.outcome, shortages = holder.shortages }
end

-- fresh says what Redis would have answered to a new reserve, from a fetched book.
local function fresh(book, list, op, holder, t)
  local j = keyAlone(op, holder, t)
  if j then return j end
  local seen, short = {}, {}
  for i, l in ipairs(list) do
    local available = book.avail[l[1]]
    if not available then return { decision = 'unknown_bucket' } end
    seen[i] = int(available)
    if available < l[2] then
      short[#short + 1] = bucketOf(l[1]) .. ':' .. int(l[2]) .. ':' .. int(math.max(0, available))
    end
  end
  return { decision = #short > 0 and 'rejected' or 'granted', seen = table.concat(seen, ','), shortages = table.concat(short, ',') }
end

-- known to Redis: what its own record says to each operation.
local CLAIM = { held = 'claimed', provisional = 'claimed', claiming = 'claimed', expired = 'claimed', claimed = 'claimed',
  refused = 'refund_required' }
local RELEASE = { held = 'released', provisional = 'released', expired = 'released', released = 'released' }

local function existing(op, cur)
  local kindOf, state = ARGV[3], cur.state
  if kindOf == 'claim' then return { decision = CLAIM[state] or 'state_conflict' } end
  if kindOf == 'release' then
    return { decision = RELEASE[state] or 'state_conflict', overtaken = state == 'claiming' }
  end
  if kindOf == 'expire' then
    if state == 'rejected' then return { decision = 'state_conflict' } end
    return { decision = 'expired', overtaken = state == 'claiming' or RANK[state] > RANK.expired }
  end
  if cur.hash ~= op.hash then return { decision = 'key_conflict' } end
  local own = ARGV[5] == '1' or cur.decided_by == 'redis'
  return { decision = cur.outcome, shortages = cur.shortages, overtaken = not own }
end

-- merged is the state that both stores should end in (reservation.Merge), and what this store makes of it.
local function merged(op, cur, t)
  local truth, mirror = cur.state, op.state
  -- A restore adopts what is not there; a rejection that is was answered to somebody as well.
  if MYSQL_IS_TRUTH or ADOPT and not restoring then truth, mirror = op.state, cur.state end
  local want = truth
  local either = LIVE[truth] and mirror == 'rejected' or truth == 'rejected' and LIVE[mirror]
  if not either and RANK[mirror] > RANK[truth] then want = mirror end
  if cur.state == 'claiming' then
    local ends = want == 'claimed' or want == 'refused' or want == 'released' and ARGV[7] == 'claiming'
    return ends and want or 'claiming'
  end
  if want == 'held' and cur.state ~= 'held' and number('the record', op, 'expires_at') <= t then return 'expired' end
  return want
end

-- byForce takes the units of lines, also those that are not there, and gives how many were not.
local function byForce(book, list)
  local forced = 0
  for _, l in ipairs(list) do forced = forced + math.max(0, l[2] - math.max(0, book.avail[l[1]])) end
  take(book, list)
  return forced
end

local function allKnown(book, list)
  for _, l in ipairs(list) do
    if not book.avail[l[1]] then return false end
  end
  return true
end

-- put writes the operation's fields over what is here, but for those that are not its to say; a step that it does
-- not know stays. cur is the record that is here, nil if there is none.
local function put(id, op, cur, state)
  local key = resKey(id)
  local expires, purge = op.expires_at, op.purge_at
  if cur then
    for _, own in ipairs({ 'shop', 'key', 'hash', 'lines' }) do op[own] = nil end
    if not MYSQL_IS_TRUTH and cur.state ~= 'rejected' then -- Redis decided it, and only learns how it ended
      for _, own in ipairs({ 'outcome', 'shortages', 'decided_by', 'epoch', 'created_at', 'expires_at', 'purge_at' }) do
        op[own] = nil
      end
      expires, purge = cur.expires_at, cur.purge_at
    end
  end
  for field, value in pairs(op) do redis.call('HSET', key, field, value) end
  redis.call('HSET', key, 'state', state, 'by', ARGV[10])
  redis.call('HDEL', key, 'seen', 'pin_until', 'judged')
  if state == 'expired' and not op.expired_at then redis.call('HSET', key, 'expired_at', expires) end
  redis.call('ZADD', EXP, state == 'held' and expires or purge, id)
end

-- anew: the truth has decided in a later epoch what this store had decided and told nobody, and stamped another expiry.
local function anew(op, cur)
  return MYSQL_IS_TRUTH and op.state == cur.state and tonumber(op.epoch) > tonumber(cur.epoch)
    and op.expires_at ~= cur.expires_at
end

-- moved brings the record that is here up to what the truth says.
local function moved(id, op, cur, t)
  if cur.by == ARGV[10] then -- the first reply was lost: there is nothing left to judge
    return { decision = ARGV[4], state = cur.state, stored = true, overtaken = true }
  end
  local j = existing(op, cur)
  local want = merged(op, cur, t)
  local had = takes(cur)
  local takesNow = want == 'held' or want == 'claiming' and had
  local book, list = newBook(), {}
  if had ~= takesNow then list = lines(book, resKey(id), cur.shop, cur.lines) end
  local own = {}
  if op.state == 'claimed' then own = changes(book, ARGV[11]) end
  fetch(book, true)
  if takesNow and not had then
    if not allKnown(book, list) then return { decision = 'unknown_bucket', state = cur.state } end
    j.forced = byForce(book, list)
  else
    known(book, list)
    back(book, list)
  end
  advance(book, own)
  local writes = settle(book)

  write(writes)
  j.state = want
  if want == cur.state and not anew(op, cur) then return j end
  put(id, op, cur, want)
  j.stored = true
  return j
end

-- yield decides whose the key is: the truth's. It gives the lines whose units the other record loses, and what it
-- becomes (nil: it keeps its state; '': it is removed).
local function yield(book, op, holder, t)
  local gone = holder.state ~= 'claiming' and number(holder.at, holder, 'purge_at') <= t
  if not gone and not MYSQL_IS_TRUTH then
    op.key = ''
    if op.state == 'held' and not ADOPT then op.state, op.outcome = 'rejected', 'rejected' end
    return {}, nil
  end
  local loses = gone or holder.state ~= 'claiming' and (op.state == 'held' or op.state == 'rejected')
  local freed = {}
  if loses and takes(holder) then freed = lines(book, holder.at, holder.shop, holder.lines) end
  if gone then return freed, '' end
  return freed, #freed > 0 and 'rejected' or nil
end

-- displace carries out what yield decided.
local function displace(holder, becomes)
  if becomes == '' then return remove(holder.id, holder) end
  redis.call('HSET', holder.at, 'key', '')
  if becomes then
    redis.call('HSET', holder.at, 'state', becomes, 'outcome', becomes)
    redis.call('HDEL', holder.at, 'seen')
    redis.call('ZADD', EXP, holder.purge_at, holder.id)
  end
end

-- landed stores a reservation that is not here yet.
local function landed(id, op, holder, t)
  if number('the record', op, 'purge_at') <= t then return { decision = 'not_found' } end
  local j = { decision = 'not_found', backfilled = true }
  if op.state == 'held' and number('the record', op, 'expires_at') <= t then op.state = 'expired' end
  local book = newBook()
  local list = lines(book, resKey(id), op.shop, op.lines)
  local freed, becomes = {}, nil
  local asked = { hash = op.hash }
  if holder then freed, becomes = yield(book, op, holder, t) end
  local own = {}
  if op.state == 'claimed' then own = changes(book, ARGV[11]) end
  fetch(book, true)
  if ARGV[3] == 'reserve' and ARGV[5] ~= '1' then j = fresh(book, list, asked, holder, t) end
  known(book, freed)
  back(book, freed)
  if op.state == 'held' then
    if not allKnown(book, list) then return { decision = 'unknown_bucket' } end
    j.forced = byForce(book, list)
  end
  advance(book, own)
  local writes = settle(book)

  if holder and op.key ~= '' then displace(holder, becomes) end
  write(writes)
  put(id, op, nil, op.state)
  if op.key ~= '' then redis.call('SET', indexKey(op.shop, op.key), id) end
  redis.call('ZADD', CREATED, '0', id)
  j.stored, j.state = true, op.state
  return j
end

-- unsold judges an adjustment that the truth refused.
local function unsold(op)
  local book = newBook()
  want(book, op.bucket)
  fetch(book, false)
  local available, delta = book.avail[op.bucket], tonumber(op.delta)
  if not available then return { decision = 'unknown_bucket' } end
  local short = delta < 0 and op.force ~= '1' and available + delta < 0
  return { decision = short and 'adjust_refused' or 'adjusted', seen = int(available) }
end

-- unstored judges an operation that changed nothing at the truth either.
local function unstored(id, op, cur, holder, t)
  if ARGV[3] == 'adjust' then return judged(unsold(op), nil) end
  if ARGV[3] == 'reserve' then
    if cur and not holder then holder, cur.at = cur, resKey(id) end
    local book = newBook()
    local list = lines(book, 'the request', op.shop, op.lines)
    fetch(book, false)
    local j = fresh(book, list, op, holder, t)
    if holder and not j.seen and j.decision ~= 'unknown_bucket' then j.state = holder.state end
    return judged(j, nil)
  end
  if not cur or cur.shop ~= op.shop or number(resKey(id), cur, 'purge_at') <= t and cur.state ~= 'claiming' then
    return judged({ decision = 'not_found' }, nil)
  end
  local j = existing(op, cur)
  j.state, j.overtaken = cur.state, false
  return judged(j, id)
end

local function main()
  fence()
  local t = now()
  local id, op = ARGV[12], {}
  for i = 13, #ARGV, 2 do op[ARGV[i]] = ARGV[i + 1] end
  local cur, holder = nil, nil
  if id ~= '' then cur = record(id) end
  if op.key and op.key ~= '' then
    local holderId = read('GET', indexKey(op.shop, op.key))
    if holderId and holderId ~= id then
      holder = record(holderId)
      if holder then holder.id, holder.at = holderId, resKey(holderId) end
    end
  end
  if ARGV[9] ~= '1' then return unstored(id, op, cur, holder, t) end
  check(EXP, 'zset')
  check(CREATED, 'zset')
  if cur and cur.shop ~= op.shop then corrupt(resKey(id), 'is of shop ' .. cur.shop .. ', and of shop ' .. op.shop .. ' at the truth') end
  local have = cur and cur.state or 'unknown'
  if ARGV[7] ~= '' and ARGV[7] ~= have then
    return judged({ decision = cur and cur.outcome, state = cur and cur.state }, cur and id)
  end
  if cur then return judged(moved(id, op, cur, t), id) end
  return judged(landed(id, op, holder, t), id)
end

return run(main)
