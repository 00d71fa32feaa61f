-- fence_check: compare the caller's epoch and stage with the fence, and do nothing else.
--
-- Replies  DONE
local function main()
  fence()
  return { 'DONE' }
end

return run(main)
