-- sweep: look at one member of {pod}:exp and do what its time has come for. All is judged anew here. While MySQL decides
-- a hold past its expiry is MySQL's to end: it is looked at again later, and ended here only past its retention.
--
-- ARGV     3 member (an id, or 'adj:shop:adjustment id'), 4 lease (microseconds), 5 token of this sweep
-- Replies  EXPIRED record   a hold ended; its units went back
--          PIN record       an old pin: its lease was renewed, and the caller rolls it forward
--          ADJPIN fields    the same of an adjustment
--          PURGED           a record past its retention was removed
--          ENDED            the same, of one that is not reported: MySQL decides
--          NOTDUE           nothing to do yet (its time in the index was set right)
--          GONE             the member belonged to nothing and was removed

local function adjustment(member, t, lease)
  local key = POD .. ':' .. member
  local a = hash(key)
  if not a then
    redis.call('ZREM', EXP, member)
    return { 'GONE' }
  end
  local deadline = number(key, a, 'pin_until')
  local due = deadline <= t
  if due then deadline = t + lease end
  redis.call('ZADD', EXP, int(deadline), member)
  if not due then return { 'NOTDUE' } end
  redis.call('HSET', key, 'pin_until', int(deadline))
  return { 'ADJPIN', redis.call('HGETALL', key) }
end

local function expire(id, key, r, t, token)
  local book = newBook()
  local list = lines(book, key, r.shop, r.lines)
  fetch(book, false)
  known(book, list)
  back(book, list)
  local purge = int(number(key, r, 'purge_at'))
  local writes = settle(book)

  write(writes)
  redis.call('HSET', key, 'state', 'expired', 'expired_at', int(t), 'by', token)
  redis.call('HDEL', key, 'seen')
  redis.call('ZADD', EXP, purge, id)
  return { mysqlDecides() and 'ENDED' or 'EXPIRED', flat(id) }
end

local function main()
  local member, lease, token = ARGV[3], tonumber(ARGV[4]), ARGV[5]
  fence()
  check(EXP, 'zset')
  check(CREATED, 'zset')
  local t = now()
  if string.sub(member, 1, 4) == 'adj:' then return adjustment(member, t, lease) end
  local r = record(member)
  if not r then
    redis.call('ZREM', EXP, member)
    return { 'GONE' }
  end
  local key = resKey(member)
  local field = 'purge_at'
  if r.state == 'held' or r.state == 'provisional' then field = 'expires_at' end
  if r.state == 'claiming' then field = 'pin_until' end
  local due = number(key, r, field)
  if due > t then
    if r.state == 'expired' and r.by == token then return { mysqlDecides() and 'ENDED' or 'EXPIRED', flat(member) } end
    redis.call('ZADD', EXP, int(due), member)
    return { 'NOTDUE' }
  end
  if r.state == 'held' and mysqlDecides() and number(key, r, 'purge_at') > t then
    redis.call('ZADD', EXP, int(t + lease), member)
    return { 'NOTDUE' }
  end
  if field == 'expires_at' then return expire(member, key, r, t, token) end
  if field == 'pin_until' then
    redis.call('HSET', key, 'pin_until', int(t + lease))
    redis.call('ZADD', EXP, int(t + lease), member)
    return { 'PIN', flat(member) }
  end
  check(indexKey(r.shop, r.key), 'string')
  remove(member, r)
  return { 'PURGED' }
end

return run(main)
