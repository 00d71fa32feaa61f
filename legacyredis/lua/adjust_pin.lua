-- adjust_pin: remember an adjustment before the ledger is asked, so that a crash leaves nothing half done. The units
-- of a negative one are taken from available stock here; a positive one moves nothing until the ledger has it.
--
-- ARGV     3 shop, 4 adjustment id, 5 item, 6 group, 7 delta, 8 force ('1' or '0'), 9 lease (microseconds)
-- Replies  PINNED forced available   forced: '1' where available went below zero; available as it was before
--          SHORT available           not enough, and not forced
--          KEYCONFLICT               the id has a pin of another adjustment
--          UNKNOWNBUCKET shop:item:group
local function main()
  local shop, id, delta = ARGV[3], ARGV[4], tonumber(ARGV[7])
  fence()
  local t = now()
  local member = 'adj:' .. shop .. ':' .. id
  local key = POD .. ':' .. member
  local pin = hash(key)
  if pin then
    if pin.item ~= ARGV[5] or pin.group ~= ARGV[6] or pin.delta ~= ARGV[7] then return { 'KEYCONFLICT' } end
    return { 'PINNED', pin.forced, pin.seen }
  end
  local short, available, writes = false, 0, {}
  if delta < 0 then
    local book = newBook()
    local name = shop .. ':' .. ARGV[5] .. ':' .. ARGV[6]
    want(book, name)
    fetch(book, false)
    available = book.avail[name]
    if not available then return { 'UNKNOWNBUCKET', name } end
    short = available + delta < 0
    if short and ARGV[8] ~= '1' then return { 'SHORT', int(available) } end
    take(book, { { name, -delta } })
    writes = settle(book)
  end
  check(EXP, 'zset')

  write(writes)
  local deadline = int(t + tonumber(ARGV[9]))
  local forced = short and '1' or '0'
  redis.call('HSET', key, 'shop', shop, 'item', ARGV[5], 'group', ARGV[6], 'delta', ARGV[7], 'force', ARGV[8],
    'forced', forced, 'seen', int(available), 'pinned_at', int(t), 'pin_until', deadline)
  redis.call('ZADD', EXP, deadline, member)
  return { 'PINNED', forced, int(available) }
end

return run(main)
