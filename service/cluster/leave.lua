-- Run inside HAProxy: sends elsewhere who waits for a replica that is stopped or cut off, by what
-- its checks came to. `on-marked-down shutdown-sessions` would do so with a dead one's too, whose
-- requests are on their way elsewhere already, and lose some. To one that is cut off others may be
-- connecting still, for 5 s.
core.register_task(function()
  while true do
    core.msleep(250)
    for _, backend in pairs(core.backends) do
      for _, server in pairs(backend.servers) do
        local stats = server:get_stats()
        local check = stats["check_status"] or "" -- behind a star while the next one runs
        local hangs = check:find("L7TOUT") or check:find("L4TOUT") and stats["lastchg"] > 5
        if stats["status"] == "DOWN" and hangs then
          server:shut_sess()
        end
      end
    end
  end
end)
