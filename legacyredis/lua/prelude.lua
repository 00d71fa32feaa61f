-- Common part of every script. It is put in front of each script's own text before that is loaded.
--
-- KEYS[1]  {pod}:fence. Every other key is built from its hash tag, so all of them are in its slot.
-- ARGV     1 epoch, 2 stage: what the caller believes the pod to be in; or 1 'restore', 2 the token of the restore
--          that is under way. The rest is the script's own.
-- Replies  are arrays whose first element says what happened. Those that any script may give:
--          STALE|REGRESSED fence     the fence refused; it comes along in the ten fields of whole()
--          NOFENCE fence             there is no fence
--          RESTORING                 the restore's token is not this one: its lease ran out, or it has ended
--          CORRUPT key what          somebody else's data
--          In each of these cases nothing was changed, but for a latch that was folded into the fence.
--
-- Redis does not roll a script back. So a script first reads and checks all that it will touch, and stop()s;
-- from its first write on nothing can fail. Without a shebang line Redis judges OOM, READONLY and MISCONF at a
-- script's first write only: whole or not at all, and replays, which write nothing, are still answered.
--
-- Numbers in Lua are doubles: exact to 2^53. Figures stay below that (checked in fetch and settle), microseconds
-- do until the year 2255, and all of them are kept and sent as strings.

local FENCE = KEYS[1]
local POD = string.sub(FENCE, 1, -7)
local EXP = POD .. ':exp'
local CREATED = POD .. ':created'
local EXACT = 9007199254740992
local CHUNK = 250 -- buckets a command; unpack fails from a few thousand values
local RANK = {
  provisional = 1, held = 2, claiming = 2, rejected = 3, expired = 3, refused = 4, released = 5, claimed = 6,
}

local LEASE = '30000' -- of a restore, milliseconds
local MINE = 'token' -- the fence's field that names the call which changed it last

-- folds tells the stages that a latch ends.
local function folds(stage) return stage == 'handover' or stage == 'cutover' end

local frozen, frozenBuckets = false, ''
local restoring = nil -- the lease of the restore whose write this is

local function int(n) return string.format('%.0f', n) end

-- stop ends the script with a reply. Only before the first write.
local function stop(reply) error({ reply = reply }) end

local function corrupt(key, what) stop({ 'CORRUPT', key, what }) end

-- run calls the script's main function and gives its reply, or the one it stopped with. A write of a restore renews
-- its lease, after everything else: a first write that Redis never refuses would let the others pass its limit too.
local function run(main)
  local ok, r = pcall(main)
  if not ok then
    if type(r) ~= 'table' or not r.reply then
      local text = type(r) == 'table' and r.err or tostring(r) -- a string or a table, by Redis's version
      if string.find(text, '^%u+ ') then return redis.error_reply(text) end
      return redis.error_reply('ERR script failed: ' .. text)
    end
    r = r.reply
  end
  if restoring then redis.call('PEXPIRE', POD .. ':restore', restoring) end
  return r
end

local function kind(key)
  local t = redis.call('TYPE', key)
  return t.ok or t
end

-- check makes sure that a key is absent or of the given type.
local function check(key, want)
  local k = kind(key)
  if k ~= 'none' and k ~= want then corrupt(key, 'is a ' .. k .. ', not a ' .. want) end
end

-- read runs a reading command whose only possible failure is a key of the wrong type.
local function read(command, key, ...)
  local r = redis.pcall(command, key, ...)
  if type(r) == 'table' and r.err then
    if string.find(r.err, 'WRONGTYPE', 1, true) then
      corrupt(key, 'is a ' .. kind(key) .. ', which ' .. command .. ' cannot read')
    end
    error(r)
  end
  return r
end

-- now is Redis's clock in microseconds, the same through the whole script.
local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- brakes makes what changes, shows and refuses by the fence: only where it is needed, since Redis runs the whole text
-- of a script each time, and a reserve that is carried out needs none of it.
local function brakes()
  local AUDIT, KILL = POD .. ':audit', POD .. ':kill'

  -- whole is the fence as replies carry it: epoch stage incarnation incarnation_epoch server frozen suspect
  -- frozen_buckets killed latch. Fields that are not there are empty; a latch of any type is one.
  local function whole()
    local f = read('HMGET', FENCE, 'epoch', 'stage', 'incarnation', 'incarnation_epoch', 'server', 'frozen', 'suspect',
      'frozen_buckets')
    for i = 1, 8 do f[i] = f[i] or '' end
    f[9] = int(redis.call('EXISTS', KILL))
    local latch = redis.pcall('GET', KILL)
    f[10] = type(latch) == 'string' and latch or ''
    return f
  end

  -- server is the run id of this process.
  local function server() return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or '' end

  -- with puts a status in front of a fence.
  local function with(status, f)
    table.insert(f, 1, status)
    return f
  end

  -- utc writes microseconds as RFC 3339 does.
  local function utc(t)
    local seconds = math.floor(t / 1000000)
    local days, rest = math.floor(seconds / 86400), seconds % 86400
    local z = days + 719468
    local era = math.floor(z / 146097)
    local doe = z - era * 146097
    local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
    local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
    local mp = math.floor((5 * doy + 2) / 153)
    local day = doy - math.floor((153 * mp + 2) / 5) + 1
    local month = mp < 10 and mp + 3 or mp - 9
    local year = yoe + era * 400 + (month <= 2 and 1 or 0)
    return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, day, math.floor(rest / 3600),
      math.floor(rest % 3600 / 60), rest % 60, t % 1000000)
  end

  local function stampText(epoch, stage)
    return '{"epoch":' .. (epoch == '' and '0' or epoch) .. ',"stage":' .. cjson.encode(stage) .. '}'
  end

  -- audit writes down what changed a fence, in the same step. body is the record as JSON, without its time and without
  -- the stamps before and after. A list that somebody has spoilt does not stop a kill.
  local function audit(body, epoch, stage, epochAfter, stageAfter)
    local k = kind(AUDIT)
    if k ~= 'none' and k ~= 'list' then return end
    redis.call('RPUSH', AUDIT, '{"at":"' .. utc(now()) .. '","before":' .. stampText(epoch, stage) .. ',"after":' ..
      stampText(epochAfter, stageAfter) .. ',' .. string.sub(body, 2))
  end

  -- evenIfFull makes the writes after it possible where Redis is at maxmemory: it judges that at a script's first
  -- write, and never refuses one that only deletes. For the few bytes of a kill or a suspicion, nothing else.
  local function evenIfFull() redis.call('DEL', POD .. ':none') end

  -- fold makes a latch the fence's: epoch + 1, shadow. body is its audit record, nil where the latch was set by hand.
  local function fold(epoch, stage, body)
    evenIfFull()
    local after = int(tonumber(epoch) + 1)
    if not body then
      local latch = redis.pcall('GET', KILL)
      body = '{"pod":' .. cjson.encode(string.sub(POD, 2, -2)) .. ',"action":"kill","by":"latch","reason":' ..
        cjson.encode(type(latch) == 'string' and latch or '') .. '}'
    end
    redis.call('HSET', FENCE, 'epoch', after, 'stage', 'shadow')
    redis.call('HDEL', FENCE, MINE)
    audit(body, epoch, stage, after, 'shadow')
  end

  -- present is the whole fence for a script that changes or shows it: a latch that has to be folded is. A suspect
  -- fence is left alone: what it says of the stage proves nothing, and its latch is folded when it has been restored.
  local function present()
    local f = whole()
    if f[1] ~= '' and not tonumber(f[1]) then corrupt(FENCE, 'has no number for an epoch') end
    if f[1] ~= '' and f[7] ~= '1' and f[9] == '1' and folds(f[2]) then
      fold(f[1], f[2], nil)
      f = whole()
    end
    return f
  end

  return { whole = whole, server = server, with = with, audit = audit, evenIfFull = evenIfFull, fold = fold, present = present }
end

-- refuse stops with what the fence says to the caller's stamp.
local function refuse(f)
  local epoch = tonumber(f[1])
  if f[1] == '' then stop(brakes().with('NOFENCE', f)) end
  if not epoch then corrupt(FENCE, 'has no number for an epoch') end
  local stale = f[7] ~= '1' and tonumber(ARGV[1]) < epoch
  stop(brakes().with(stale and 'STALE' or 'REGRESSED', f))
end

-- lease makes sure that the caller is the restore that is under way.
local function lease()
  if redis.pcall('GET', POD .. ':restore') ~= ARGV[2] then stop({ 'RESTORING' }) end
  restoring = LEASE
end

-- fence stops the script unless the caller's epoch and stage are those of the fence, or the caller restores.
local function fence()
  local f = read('HMGET', FENCE, 'epoch', 'stage', 'suspect', 'frozen', 'frozen_buckets')
  if ARGV[1] == 'restore' then return lease() end
  frozen, frozenBuckets = f[4] == '1', f[5] or ''
  if f[1] == ARGV[1] and f[2] == ARGV[2] and f[3] ~= '1' then
    if not folds(ARGV[2]) or redis.call('EXISTS', POD .. ':kill') == 0 then return end
  end
  refuse(brakes().present())
end

-- mysqlDecides tells whether the caller's stage is one in which MySQL does.
local function mysqlDecides() return ARGV[2] == 'cutover' or ARGV[2] == 'complete' end

local function resKey(id) return POD .. ':res:' .. id end

local function indexKey(shop, key) return POD .. ':key:' .. shop .. ':' .. key end

-- hash reads a hash as a table; nil if there is none.
local function hash(key)
  local flat = read('HGETALL', key)
  if #flat == 0 then return nil end
  local r = {}
  for i = 1, #flat, 2 do r[flat[i]] = flat[i + 1] end
  return r
end

-- number reads a field of a hash that must hold a whole number.
local function number(key, r, field)
  local v = r[field]
  if not v or not string.find(v, '^%-?%d+$') then corrupt(key, 'has no number in field ' .. field) end
  return tonumber(v)
end

-- record reads a reservation and makes sure that its state is one; nil if it is not there.
local function record(id)
  local key = resKey(id)
  local r = hash(key)
  if not r then return nil end
  if not RANK[r.state or ''] then corrupt(key, 'has no state that is known') end
  if not r.shop or not r.key or not r.lines then corrupt(key, 'lacks its shop, key or lines') end
  return r
end

-- flat is a reservation as a script replies it.
local function flat(id) return redis.call('HGETALL', resKey(id)) end

-- takes tells whether the reservation's units are out of the available stock.
local function takes(r)
  return r.state == 'held' or r.state == 'provisional' or (r.state == 'claiming' and r.refuse ~= '1')
end

-- A book holds the counters of some buckets: read and checked whole, changed here, then written whole.
-- name is 'shop:item:group'.
local function newBook() return { names = {}, avail = {}, held = {}, onhand = {}, ver = {}, touched = {} } end

local function want(book, name)
  if book.avail[name] == nil then
    book.avail[name] = false
    book.names[#book.names + 1] = name
  end
end

-- lines reads packed lines 'item:group:quantity,...', enters their buckets in the book and gives
-- {name, quantity} pairs.
local function lines(book, key, shop, packed)
  local out = {}
  for part in string.gmatch(packed, '[^,]+') do
    local bucket, quantity = string.match(part, '^(%d+:%d+):(%d+)$')
    if not bucket then corrupt(key, 'has lines that cannot be read') end
    local name = shop .. ':' .. bucket
    want(book, name)
    out[#out + 1] = { name, tonumber(quantity) }
  end
  return out
end

local function counter(key, v)
  if not string.find(v, '^%-?%d+$') then corrupt(key, 'is not a whole number') end
  local n = tonumber(v)
  if n >= EXACT or n <= -EXACT then corrupt(key, 'is beyond every figure that is kept') end
  return n
end

-- fetch reads the counters. A bucket without its available counter stays false (unknown, never zero); one without
-- another of its counters is corrupt. withLedger reads on_hand and version too.
local function fetch(book, withLedger)
  local kinds = { 'avail', 'held' }
  if withLedger then kinds = { 'avail', 'held', 'onhand', 'ver' } end
  for first = 1, #book.names, CHUNK do
    local last = math.min(first + CHUNK - 1, #book.names)
    local keys = {}
    for i = first, last do
      for _, k in ipairs(kinds) do keys[#keys + 1] = POD .. ':' .. k .. ':' .. book.names[i] end
    end
    local got = redis.call('MGET', unpack(keys))
    local at = 0
    for i = first, last do
      local name = book.names[i]
      for n, k in ipairs(kinds) do
        local key, v = keys[at + n], got[at + n]
        if v then
          book[k][name] = counter(key, v)
        else
          check(key, 'string')
          if book.avail[name] then corrupt(key, 'is missing beside its counter of available stock') end
          book[k][name] = false
        end
      end
      at = at + #kinds
    end
  end
end

-- known stops the script where a bucket of a record that took its units there has no counters.
local function known(book, list)
  for _, l in ipairs(list) do
    if not book.avail[l[1]] then corrupt(POD .. ':avail:' .. l[1], 'is missing, and a reservation counts on it') end
  end
end

-- move changes available and held stock in the book.
local function move(book, name, avail, held)
  book.avail[name] = book.avail[name] + avail
  book.held[name] = book.held[name] + held
  book.touched[name] = true
end

-- back gives the units of lines back to available stock; take is its opposite.
local function back(book, list)
  for _, l in ipairs(list) do move(book, l[1], l[2], -l[2]) end
end

local function take(book, list)
  for _, l in ipairs(list) do move(book, l[1], -l[2], l[2]) end
end

-- enough tells whether every line can be had.
local function enough(book, list)
  for _, l in ipairs(list) do
    if book.avail[l[1]] < l[2] then return false end
  end
  return true
end

-- frozenHere tells whether the pod, or one of the lines' buckets, takes no new decisions.
local function frozenHere(list)
  if frozen or frozenBuckets == '' then return frozen end
  for _, l in ipairs(list) do
    if string.find(',' .. frozenBuckets .. ',', ',' .. l[1] .. ',', 1, true) then return true end
  end
  return false
end

-- bucketOf is a name without its shop.
local function bucketOf(name) return string.match(name, ':(.+)$') end

-- settle makes sure that every changed counter can be written, and gives the writes. The last step before the
-- first write.
local function settle(book)
  local writes = {}
  for _, name in ipairs(book.names) do
    if book.touched[name] then
      for _, k in ipairs({ 'avail', 'held', 'onhand', 'ver' }) do
        local v = book[k][name]
        if v then
          local key = POD .. ':' .. k .. ':' .. name
          if v >= EXACT or v <= -EXACT then corrupt(key, 'would go beyond every figure that is kept') end
          writes[#writes + 1] = key
          writes[#writes + 1] = int(v)
        end
      end
    end
    if book.done and book.done[name] then
      for member, is in pairs(book.done[name]) do
        writes.sets = writes.sets or {}
        writes.sets[#writes.sets + 1] = { is and 'SADD' or 'SREM', POD .. ':done:' .. name, member }
      end
    end
  end
  return writes
end

-- write carries out what settle gave.
local function write(writes)
  local step = CHUNK * 4
  for first = 1, #writes, step do
    redis.call('MSET', unpack(writes, first, math.min(first + step - 1, #writes)))
  end
  if writes.sets then
    for _, w in ipairs(writes.sets) do redis.call(unpack(w)) end
  end
end

-- remove deletes a record, its place in the indexes, and its key if that still points to it.
local function remove(id, r)
  redis.call('DEL', resKey(id))
  redis.call('ZREM', CREATED, id)
  redis.call('ZREM', EXP, id)
  local index = indexKey(r.shop, r.key)
  if redis.call('GET', index) == id then redis.call('DEL', index) end
end
