-- restore_abandon: give a restore up. Redis stays suspect.
--
-- Replies  DONE
local function main()
  if redis.pcall('GET', POD .. ':restore') == ARGV[2] then redis.call('DEL', POD .. ':restore') end
  return { 'DONE' }
end

return run(main)
