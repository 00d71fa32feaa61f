-- mend: a person's correction. A reservation gets the terms that the other store has, where it is still what was shown.
--
-- ARGV     3 id, 4 token of this call, 5 audit record as JSON, 6 how many pairs were shown, 7... pairs of field and value as they were shown,
--          then pairs of the fields to write (key, hash, lines, expires_at, purge_at)
-- Replies  MENDED forced      how many of its units were not there
--          CHANGED            it is not what was shown
--          TAKEN id           its key is that of another reservation
--          UNKNOWN            a bucket of its lines has no figures
local function main()
  fence()
  local id, key = ARGV[3], resKey(ARGV[3])
  local r = record(id)
  if not r then return { 'CHANGED' } end
  if r.mended == ARGV[4] then return { 'MENDED', r.mended_forced or '0' } end -- the first reply was lost
  local first = 7 + 2 * tonumber(ARGV[6])
  for i = 7, first - 2, 2 do
    if (r[ARGV[i]] or '') ~= ARGV[i + 1] then return { 'CHANGED' } end
  end
  local to = {}
  for i = first, #ARGV, 2 do to[ARGV[i]] = ARGV[i + 1] end
  if to.key ~= r.key and to.key ~= '' then
    local holder = read('GET', indexKey(r.shop, to.key))
    if holder and holder ~= id then return { 'TAKEN', holder } end
  end
  local book, old, new, forced = newBook(), {}, {}, 0
  if takes(r) then
    old, new = lines(book, key, r.shop, r.lines), lines(book, key, r.shop, to.lines)
  end
  fetch(book, false)
  known(book, old)
  back(book, old)
  for _, l in ipairs(new) do
    if not book.avail[l[1]] then return { 'UNKNOWN' } end
    forced = forced + math.max(0, l[2] - math.max(0, book.avail[l[1]]))
  end
  take(book, new)
  check(EXP, 'zset')
  local writes = settle(book)

  write(writes)
  if to.key ~= r.key then
    if r.key ~= '' and redis.call('GET', indexKey(r.shop, r.key)) == id then redis.call('DEL', indexKey(r.shop, r.key)) end
    if to.key ~= '' then redis.call('SET', indexKey(r.shop, to.key), id) end
  end
  redis.call('HSET', key, 'key', to.key, 'hash', to.hash, 'lines', to.lines, 'expires_at', to.expires_at,
    'purge_at', to.purge_at, 'mended', ARGV[4], 'mended_forced', int(forced))
  redis.call('HDEL', key, 'seen')
  if r.state ~= 'claiming' then redis.call('ZADD', EXP, takes(r) and to.expires_at or to.purge_at, id) end
  brakes().audit(ARGV[5], ARGV[1], ARGV[2], ARGV[1], ARGV[2])
  return { 'MENDED', int(forced) }
end

return run(main)
