-- cluster: comes between the prelude and a script that is for a cluster. While a slot moves to another node, each
-- of the two has a part of the pod's keys. A script there could meet, between two of its writes, a key that has gone,
-- and Redis does not roll back; or take for absent what has not come yet. So none runs until the move is over.
--
-- Two keys that nobody ever writes tell it: a node that a slot leaves refuses what it does not have, and one that a
-- slot comes to refuses several keys of which it lacks one. Elsewhere they are simply not there.
--
-- Replies  an error TRYAGAIN: nothing was done
local complete = run

run = function(main)
  local r = redis.pcall('EXISTS', POD .. ':moving', POD .. ':coming')
  if type(r) == 'table' and r.err then
    return redis.error_reply("TRYAGAIN the pod's slot is being moved to another node, or the cluster is down: " .. r.err)
  end
  return complete(main)
end
