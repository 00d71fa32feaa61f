-- Common part of every script. It is put in front of each script's own text before that is loaded.
--
-- KEYS[1]  {pod}:fence. Every other key is built from its hash tag, so all of them are in its slot.
-- ARGV     1 epoch, 2 stage: what the caller believes the pod to be in. The rest is the script's own.
-- Replies  are arrays whose first element says what happened. Those that any script may give:
--          STALE|REGRESSED epoch stage incarnation incarnation_epoch server frozen   the fence refused
--          NOFENCE                                                                   there is no fence
--          CORRUPT key what                                                          somebody else's data
--          In each of these cases nothing was changed.
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

local frozen = false

local function int(n) return string.format('%.0f', n) end

-- stop ends the script with a reply. Only before the first write.
local function stop(reply) error({ reply = reply }) end

local function corrupt(key, what) stop({ 'CORRUPT', key, what }) end

-- run calls the script's main function and gives its reply, or the one it stopped with.
local function run(main)
  local ok, r = pcall(main)
  if ok then return r end
  if type(r) == 'table' and r.reply then return r.reply end
  local text = type(r) == 'table' and r.err or tostring(r) -- a string or a table, by Redis's version
  if string.find(text, '^%u+ ') then return redis.error_reply(text) end
  return redis.error_reply('ERR script failed: ' .. text)
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

-- fence stops the script unless the caller's epoch and stage are the fence's.
local function fence()
  local f = read('HMGET', FENCE, 'epoch', 'stage', 'incarnation', 'incarnation_epoch', 'server', 'frozen')
  if not f[1] then stop({ 'NOFENCE' }) end
  frozen = f[6] == '1'
  if f[1] == ARGV[1] and f[2] == ARGV[2] then return end
  local epoch = tonumber(f[1])
  if not epoch then corrupt(FENCE, 'has no number for an epoch') end
  local verdict = 'REGRESSED'
  if tonumber(ARGV[1]) < epoch then verdict = 'STALE' end
  stop({ verdict, f[1], f[2] or '', f[3] or '0', f[4] or '0', f[5] or '', f[6] or '0' })
end

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

-- figures reads packed figures 'shop:item:group:on_hand:version,...' and enters their buckets in the book.
local function figures(book, packed)
  local out = {}
  for part in string.gmatch(packed, '[^,]+') do
    local name, onhand, ver = string.match(part, '^(%d+:%d+:%d+):(%-?%d+):(%d+)$')
    if not name then stop({ 'CORRUPT', POD, 'figures that cannot be read: ' .. part }) end
    want(book, name)
    out[#out + 1] = { name, tonumber(onhand), tonumber(ver) }
  end
  return out
end

-- apply enters the ledger's figures in a loaded book, absolutely, and only those that are newer. It gives the
-- number that were.
local function apply(book, list)
  local n = 0
  for _, f in ipairs(list) do
    local name = f[1]
    if book.avail[name] and f[3] > book.ver[name] then
      book.avail[name] = book.avail[name] + f[2] - book.onhand[name]
      book.onhand[name] = f[2]
      book.ver[name] = f[3]
      book.touched[name] = true
      n = n + 1
    end
  end
  return n
end

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
  end
  return writes
end

-- write carries out what settle gave.
local function write(writes)
  local step = CHUNK * 4
  for first = 1, #writes, step do
    redis.call('MSET', unpack(writes, first, math.min(first + step - 1, #writes)))
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
