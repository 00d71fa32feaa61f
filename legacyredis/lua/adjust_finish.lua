-- adjust_finish: end an adjustment's pin, carried out or refused by the ledger alike: the units it took go back, and
-- the ledger's change, where there is one, is applied, once.
--
-- ARGV     3 shop, 4 adjustment id, 5 changes 'shop:item:group:delta:version,...' (may be empty)
-- Replies  DONE      the pin ended
--          GONE      there was none; only the changes were applied
local function main()
  fence()
  local member = 'adj:' .. ARGV[3] .. ':' .. ARGV[4]
  local key = POD .. ':' .. member
  local pin = hash(key)
  local book = newBook()
  local list = {}
  if pin then
    local delta = number(key, pin, 'delta')
    if not pin.item or not pin.group then corrupt(key, 'lacks its item or group') end
    if delta < 0 then
      list[1] = { ARGV[3] .. ':' .. pin.item .. ':' .. pin.group, -delta }
      want(book, list[1][1])
    end
  end
  local own = changes(book, ARGV[5])
  fetch(book, true)
  known(book, list)
  back(book, list)
  advance(book, own)
  check(EXP, 'zset')
  local writes = settle(book)

  write(writes)
  if not pin then return { 'GONE' } end
  redis.call('DEL', key)
  redis.call('ZREM', EXP, member)
  return { 'DONE' }
end

return run(main)
