-- The ledger's versions in a book: part of the scripts that apply its changes and figures, behind the prelude.
--
-- {pod}:ver:<bucket> is the version up to which everything is in; those above it that came before their turn are the
-- members of the set {pod}:done:<bucket>.

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

-- changes reads packed changes 'shop:item:group:delta:version,...' and enters their buckets in the book.
local function changes(book, packed)
  local out = {}
  for part in string.gmatch(packed, '[^,]+') do
    local name, delta, ver = string.match(part, '^(%d+:%d+:%d+):(%-?%d+):(%d+)$')
    if not name then stop({ 'CORRUPT', POD, 'changes that cannot be read: ' .. part }) end
    want(book, name)
    out[#out + 1] = { name, tonumber(delta), tonumber(ver) }
  end
  return out
end

local function doneKey(name) return POD .. ':done:' .. name end

-- isDone tells whether a version above the bucket's own was applied out of its turn.
local function isDone(book, name, ver)
  local member = int(ver)
  local own = book.done and book.done[name] and book.done[name][member]
  if own ~= nil then return own end
  return read('SISMEMBER', doneKey(name), member) == 1
end

local function setDone(book, name, ver, is)
  book.done = book.done or {}
  book.done[name] = book.done[name] or {}
  book.done[name][int(ver)] = is
end

-- compact takes the versions that follow the bucket's own out of what was applied out of turn.
local function compact(book, name)
  while isDone(book, name, book.ver[name] + 1) do
    book.ver[name] = book.ver[name] + 1
    setDone(book, name, book.ver[name], false)
  end
end

-- advance applies the ledger's changes to a book fetched with its ledger, each once: what is on hand and available
-- move together. Changes come in any order. Version 0 is an old entry's, which the figures have since long.
local function advance(book, list)
  for _, c in ipairs(list) do
    local name, delta, ver = c[1], c[2], c[3]
    if book.avail[name] and ver > book.ver[name] and not isDone(book, name, ver) then
      move(book, name, delta, 0)
      book.onhand[name] = book.onhand[name] + delta
      if ver == book.ver[name] + 1 then
        book.ver[name] = ver
        compact(book, name)
      else
        setDone(book, name, ver, true)
      end
    end
  end
end

-- apply enters the ledger's figures in a book fetched with its ledger, absolutely: those that are newer, and not older
-- than a change that was applied out of its turn (newer ones will come). It gives the number that were applied.
local function apply(book, list)
  local n = 0
  for _, f in ipairs(list) do
    local name, onhand, ver = f[1], f[2], f[3]
    if book.avail[name] and ver > book.ver[name] then
      local ahead, behind = false, {}
      for _, m in ipairs(read('SMEMBERS', doneKey(name))) do
        if tonumber(m) > ver then ahead = true else behind[#behind + 1] = m end
      end
      if not ahead then
        for _, m in ipairs(behind) do setDone(book, name, m, false) end
        move(book, name, onhand - book.onhand[name], 0)
        book.onhand[name], book.ver[name] = onhand, ver
        n = n + 1
      end
    end
  end
  return n
end
