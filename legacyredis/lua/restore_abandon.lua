-- restore_abandon: give a restore up. Redis stays suspect.
--
-- Replies  DONE
local function main()
  if redis.pcall('GET', RESTORE) == ARGV[2] then redis.call('DEL', RESTORE) end
  return { 'DONE' }
end

return run(main)
