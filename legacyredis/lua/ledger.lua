-- ledger: apply the ledger's figures absolutely, those that are newer than what is here.
--
-- ARGV     3 create ('1': a bucket that is not here is created), 4 figures 'shop:item:group:on_hand:version,...'
-- Replies  DONE applied
--          UNKNOWNBUCKET shop:item:group    it is not here and may not be created; nothing was changed
local function main()
  fence()
  local book = newBook()
  local figs = figures(book, ARGV[4])
  fetch(book, true)
  local new = 0
  for _, f in ipairs(figs) do
    local name = f[1]
    if not book.avail[name] then
      if ARGV[3] ~= '1' then return { 'UNKNOWNBUCKET', name } end
      for _, k in ipairs({ 'held', 'onhand', 'ver' }) do
        if book[k][name] then corrupt(POD .. ':avail:' .. name, 'is missing, but ' .. k .. ' of its bucket is there') end
      end
      book.avail[name], book.held[name], book.onhand[name], book.ver[name] = f[2], 0, f[2], f[3]
      book.touched[name] = true
      new = new + 1
    end
  end
  local applied = apply(book, figs) + new
  write(settle(book))
  return { 'DONE', int(applied) }
end

return run(main)
