-- mend_bucket: a person's correction. A bucket gets the ledger's figures and what its reservations hold, where its
-- counters are still what was shown. What is available follows from the others.
--
-- ARGV     3 bucket 'shop:item:group', 4 to 7 available, held, on_hand, version as they were shown,
--          8 to 10 held, on_hand, version to write, 11 audit record as JSON
-- Replies  MENDED available   CHANGED   it is not what was shown
local function main()
  fence()
  local name = ARGV[3]
  local book = newBook()
  want(book, name)
  fetch(book, true)
  local shown = { book.avail[name], book.held[name], book.onhand[name], book.ver[name] }
  local same, already = true, true
  local after = { tonumber(ARGV[9]) - tonumber(ARGV[8]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]) }
  for i = 1, 4 do
    same = same and shown[i] == tonumber(ARGV[3 + i])
    already = already and shown[i] == after[i]
  end
  if already then return { 'MENDED', int(after[1]) } end
  if not same then return { 'CHANGED' } end
  book.avail[name], book.held[name], book.onhand[name], book.ver[name] = after[1], after[2], after[3], after[4]
  book.touched[name] = true
  write(settle(book))
  brakes().audit(ARGV[11], ARGV[1], ARGV[2], ARGV[1], ARGV[2])
  return { 'MENDED', int(after[1]) }
end

return run(main)
