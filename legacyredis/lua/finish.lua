-- finish: step 3 of a claim, whatever its end. Sets what the ledger said and applies the claim's own changes of the
-- ledger, each once: its units come back from held as its change takes them from what is on hand, so that what is
-- available never shows either alone.
--
-- ARGV     3 id, 4 state (claimed, refused, released or rejected), 5 when (microseconds), 6 late ('1' or '0'),
--          7 changes 'shop:item:group:delta:version,...' (empty unless claimed)
-- Replies  DONE          the record is in that state now
--          ALREADY       it was, or in a higher one; only the changes were applied
--          GONE          no record; only the changes were applied
local function main()
  local id, state, at = ARGV[3], ARGV[4], ARGV[5]
  fence()
  local key = resKey(id)
  local r = record(id)
  local moves = r and RANK[r.state] < RANK[state]
  if state == 'rejected' then moves = r and r.state == 'claiming' end
  local book = newBook()
  local list, purge = {}, nil
  if moves then
    if takes(r) then list = lines(book, key, r.shop, r.lines) end
    purge = int(number(key, r, 'purge_at'))
  end
  local own = changes(book, ARGV[7])
  fetch(book, true)
  known(book, list)
  back(book, list)
  advance(book, own)
  check(EXP, 'zset')
  local writes = settle(book)

  write(writes)
  if not r then return { 'GONE' } end
  if not moves then return { 'ALREADY' } end
  redis.call('HSET', key, 'state', state)
  if state == 'rejected' then
    redis.call('HSET', key, 'outcome', 'rejected')
  else
    redis.call('HSET', key, state == 'released' and 'released_at' or 'claimed_at', at)
  end
  if ARGV[6] == '1' then redis.call('HSET', key, 'late', '1') end
  redis.call('HDEL', key, 'seen', 'pin_until', 'by', 'judged')
  redis.call('ZADD', EXP, purge, id)
  return { 'DONE' }
end

return run(main)
