-- finish: step 3 of a claim. Sets what the ledger said and applies its figures.
--
-- ARGV     3 id, 4 state (claimed, refused or released), 5 when (microseconds),
--          6 figures 'shop:item:group:on_hand:version,...' (may be empty)
-- Replies  DONE          the record is in that state now
--          ALREADY       it was, or in a higher one; only the figures were applied
--          GONE          no record; only the figures were applied
local function main()
  local id, state, at = ARGV[3], ARGV[4], ARGV[5]
  fence()
  local key = resKey(id)
  local r = record(id)
  local moves = r and RANK[r.state] < RANK[state]
  local book = newBook()
  local list, purge = {}, nil
  if moves then
    if takes(r) then list = lines(book, key, r.shop, r.lines) end
    purge = int(number(key, r, 'purge_at'))
  end
  local figs = figures(book, ARGV[6])
  fetch(book, true)
  known(book, list)
  back(book, list)
  apply(book, figs)
  check(EXP, 'zset')
  local writes = settle(book)

  write(writes)
  if not r then return { 'GONE' } end
  if not moves then return { 'ALREADY' } end
  redis.call('HSET', key, 'state', state, state == 'released' and 'released_at' or 'claimed_at', at)
  redis.call('HDEL', key, 'seen', 'pin_until', 'by')
  redis.call('ZADD', EXP, purge, id)
  return { 'DONE' }
end

return run(main)
