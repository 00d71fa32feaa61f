-- restore_wipe: remove some of the pod's keys, in a restore.
--
-- ARGV     3... keys
-- Replies  DONE
local function main()
  lease()
  for i = 3, #ARGV do
    if string.sub(ARGV[i], 1, #POD + 1) ~= POD .. ':' then corrupt(ARGV[i], 'is no key of this pod') end
  end
  for i = 3, #ARGV do redis.call('UNLINK', ARGV[i]) end
  return { 'DONE' }
end

return run(main)
