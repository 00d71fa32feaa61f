-- fence_init: create the pod's fence in a Redis that holds nothing of it. Never overwrites.
--
-- ARGV     1 epoch, 2 stage: those of the new fence
-- Replies  FENCE epoch stage incarnation incarnation_epoch server frozen   as it is now
--          NOTEMPTY key                                                    no fence, but that key is there
local function main()
  check(FENCE, 'hash')
  if redis.call('EXISTS', FENCE) == 0 then
    for _, key in ipairs({ CREATED, EXP }) do
      if redis.call('EXISTS', key) == 1 then return { 'NOTEMPTY', key } end
    end
    local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
    redis.call('HSET', FENCE, 'epoch', ARGV[1], 'stage', ARGV[2], 'incarnation', '1', 'incarnation_epoch', ARGV[1],
      'server', server, 'frozen', '0')
  end
  local f = redis.call('HMGET', FENCE, 'epoch', 'stage', 'incarnation', 'incarnation_epoch', 'server', 'frozen')
  for i = 1, 6 do f[i] = f[i] or '' end
  table.insert(f, 1, 'FENCE')
  return f
end

return run(main)
