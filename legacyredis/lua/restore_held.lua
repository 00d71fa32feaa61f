-- restore_held: what is held in some buckets, counted from the records, in a restore. What is available follows from it.
--
-- ARGV     3... pairs of bucket 'shop:item:group' and what is held
-- Replies  DONE bucket...    those of them that have no figures, and were left alone
local function main()
  lease()
  local book, reply = newBook(), { 'DONE' }
  for i = 3, #ARGV, 2 do
    local name = ARGV[i]
    local onhand, ver = read('GET', POD .. ':onhand:' .. name), read('GET', POD .. ':ver:' .. name)
    if onhand and ver then
      want(book, name)
      local key = POD .. ':onhand:' .. name
      book.onhand[name], book.ver[name] = counter(key, onhand), counter(POD .. ':ver:' .. name, ver)
      book.held[name] = tonumber(ARGV[i + 1])
      book.avail[name] = book.onhand[name] - book.held[name]
      book.touched[name] = true
    else
      reply[#reply + 1] = name
    end
  end
  write(settle(book))
  return reply
end

return run(main)
