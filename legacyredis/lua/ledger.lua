-- ledger: apply the ledger's figures absolutely, those that are newer than what is here. In a restore all of them are
-- applied, whatever is here: a bucket is made whole, with what is held as far as that can be read; the restore counts
-- that anew from the records at its end.
--
-- ARGV     3 create ('1': a bucket that is not here is created), 4 figures 'shop:item:group:on_hand:version,...'
-- Replies  DONE applied
--          UNKNOWNBUCKET shop:item:group    it is not here and may not be created; nothing was changed

local function enter(book, name, held, onhand, ver)
  book.avail[name], book.held[name], book.onhand[name], book.ver[name] = onhand - held, held, onhand, ver
  book.touched[name] = true
end

local function rebuild(book, figs)
  for _, f in ipairs(figs) do
    local held = redis.pcall('GET', POD .. ':held:' .. f[1])
    enter(book, f[1], type(held) == 'string' and tonumber(held) or 0, f[2], f[3])
  end
  local writes = settle(book)
  for _, f in ipairs(figs) do redis.call('DEL', doneKey(f[1])) end
  write(writes)
  return { 'DONE', int(#figs) }
end

local function main()
  fence()
  local book = newBook()
  local figs = figures(book, ARGV[4])
  if restoring then return rebuild(book, figs) end
  fetch(book, true)
  local new = 0
  for _, f in ipairs(figs) do
    local name = f[1]
    if not book.avail[name] then
      if ARGV[3] ~= '1' then return { 'UNKNOWNBUCKET', name } end
      for _, k in ipairs({ 'held', 'onhand', 'ver' }) do
        if book[k][name] then corrupt(POD .. ':avail:' .. name, 'is missing, but ' .. k .. ' of its bucket is there') end
      end
      enter(book, name, 0, f[2], f[3])
      new = new + 1
    end
  end
  local applied = apply(book, figs) + new
  write(settle(book))
  return { 'DONE', int(applied) }
end

return run(main)
