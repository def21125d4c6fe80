-- Run inside the HAProxy of a node that drains: after so many seconds no client is let in any more.
-- Those let in before are answered.
local seconds = tonumber(...)
core.register_task(function()
  core.msleep(math.floor(seconds * 1000))
  core.frontends["http_frontend"]:pause()
end)
