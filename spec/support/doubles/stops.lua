-- SPDX-License-Identifier: MIT
--
-- Doubles that break what a provider owes about kills, deadlines and late readers (see
-- spec.support.doubles).

local errors = require "sbx.errors"
local loop = require "sbx.loop"
local models = require "sbx.models"
local waits = require "sbx.waits"
local tools = require "spec.support.doubles.tools"
local virtual_time = require "spec.support.virtual_time"

local double, wrap, raise = tools.double, tools.wrap, tools.raise

double("stops.kill_after_exit", "a kill after a kill raises", function(parts)
  wrap(parts.Handle, "kill", function(original, self)
    if self.exec.name == "print_ready_exit" and self.exec.killed then raise("no such process") end
    return original(self)
  end)
end)

double("stops.kill_after_exit", "a kill changes the status of what has exited", function(parts)
  wrap(parts.Handle, "kill", function(original, self)
    original(self)
    if self.exec.exit_code == 7 then self.exec.exit_code = 137 end
  end)
end)

double("stops.received_output", "a kill drops what was not read", function(parts)
  wrap(parts.Handle, "kill", function(original, self)
    local exec = self.exec
    if not exec.ended and exec.name == "print_ready_stay" and not self.session._gone then
      exec.taken = #exec.items
    end
    return original(self)
  end)
end)

double("stops.received_output", "a kill is followed by two exit items", function(parts)
  wrap(parts.Handle, "last_item", function(original, self)
    local exec = self.exec
    if self.exit_given and not self.twice and exec.killed and exec.received.stderr > 2 then
      self.twice = true
      return models.SandboxStreamExit(exec.exit_code)
    end
    return original(self)
  end)
end)

double("stops.kill_status", "a killed command ends with 0", function(parts)
  wrap(parts.Handle, "last_item", function(original, self)
    local item = original(self)
    return item and item.exit_code == 137 and models.SandboxStreamExit(0) or item
  end)
end)

double("stops.kill_at_once", "a kill beside another raises", function(parts)
  wrap(parts.Handle, "kill", function(original, self)
    if self.exec.name == "sleep_unread" and self.exec.killed then raise("no such process") end
    return original(self)
  end)
end)

double("stops.kill_wakes_reader", "a waiting reader sleeps on", function(parts)
  wrap(parts.Handle, "next_item", function(original, self)
    local exec = self.exec
    if exec.name == "sleep_unread" and not exec.ended then
      exec:wait_end()
      if exec.killed then waits.latch():wait() end
    end
    return original(self)
  end)
end)

double("stops.kill_past_deadline", "a kill past the deadline leaves the timeout", function(parts)
  wrap(parts.Exec, "kill", function(original, self)
    local timed_out = self.how == "timeout"
    original(self)
    if timed_out then self.how = "timeout" end
  end)
end)

double("stops.kill_held_outside", "a killed command's output ends with its holders", function(parts)
  wrap(parts.Handle, "last_item", function(original, self)
    while self.exec.killed and self.exec:is_held() do
      self.exec:wait_change()
    end
    return original(self)
  end)
  wrap(parts.Process, "die", function(original, self, code)
    original(self, code)
    self.exec:changed()
  end)
end)

tools.stops_alone("stops.kill_group", "a kill stops the command alone", function(exec, why)
  return why == "kill" and exec.name == "beat_in_group" and not exec.exited
end)

tools.stops_alone("stops.kill_left_in_group", "a kill after the exit stops nothing",
  function(exec, why)
    return why == "kill" and exec.name == "leave_beat" and exec.exited
      and exec.request.wait == "output"
  end)

double("stops.kill_left_in_group", "a kill after the exit gives 137", function(parts)
  wrap(parts.Exec, "stop", function(original, self, why)
    original(self, why)
    if why == "kill" and self.exit_code == 3 then self.exit_code = 137 end
  end)
end)

-- What a handle gives past its deadline, though the command ended in time.
local function past_deadline(parts, matches, fn)
  wrap(parts.Handle, "next_item", function(original, self)
    local exec = self.exec
    local late = loop.monotonic() >= exec.started + exec.request.timeout_seconds
    if late and exec.how == "exit" and not exec.killed and matches(self) then
      local item = fn(self)
      if item then return item end
    end
    local item = original(self)
    self.has_read = self.has_read or not late
    return item
  end)
  wrap(parts.Exec, "start", function(original, ...)
    local exec = original(...)
    exec.started = loop.monotonic()
    return exec
  end)
end

double("stops.late_read", "a first read past the deadline is a timeout", function(parts)
  past_deadline(parts, function(handle) return not handle.has_read end, function(handle)
    errors.raise(parts.timeout_error(handle.exec))
  end)
end)

double("stops.late_read", "unread output is kept up to 1 MiB", function(parts)
  past_deadline(parts, function(handle) return not handle.has_read end, function(handle)
    local exec, kept = handle.exec, 0
    for i, item in ipairs(exec.items) do
      kept = kept + #item.data
      if kept > 1024 * 1024 then
        exec.items[i] = nil
        for more = i + 1, #exec.items + 100 do
          exec.items[more] = nil
        end
        return nil
      end
    end
  end)
end)

double("stops.slow_read", "a slow reader loses the end", function(parts)
  past_deadline(parts, function(handle) return handle.has_read and not handle.exit_given end,
    function(handle)
      local exec = handle.exec
      if exec.name == "lines" then exec.taken = #exec.items end
    end)
end)

double("stops.unread_deadline", "the deadline is looked at by readers", function(parts)
  wrap(parts.Exec, "on_deadline", function(original, self)
    if self.interactive and self.name == "beat" and not self.being_read then
      self.overdue = true
      return
    end
    return original(self)
  end)
  wrap(parts.Handle, "next_item", function(original, self)
    self.exec.being_read = true
    if self.exec.overdue then self.exec:on_deadline() end
    return original(self)
  end)
end)

double("stops.closed_output_deadline", "a command that closed its output is let go", function(parts)
  wrap(parts.Exec, "check_end", function(original, self)
    original(self)
    if not self.ended and self.interactive and not self:is_held() then self.disarm() end
  end)
end)

tools.stops_alone("stops.group_deadline", "the deadline of a handle stops the command alone",
  function(exec, why)
    return why == "deadline" and exec.interactive and exec.name == "beat_in_group"
  end)

double("stops.left_in_group_deadline", "the exit ends the deadline", function(parts)
  wrap(parts.Exec, "on_exit", function(original, self, code)
    original(self, code)
    if self.interactive then self.disarm() end
  end)
end)

double("stops.blocked_program_deadline", "the deadline is a timer of the program", function(parts)
  wrap(parts.Exec, "arm_deadline", function(_, self)
    self.disarm = loop.after(self.request.timeout_seconds, function() self:on_deadline() end)
  end)
end)

tools.changed_timeout("stops.timeout_counts", "a timeout counts what was read", true,
  function(err, exec)
    local counts = { stdout = 0, stderr = 0 }
    for i = 1, exec.name == "print_ready_stay" and exec.taken or 0 do
      local item = exec.items[i]
      counts[item.stream] = counts[item.stream] + #item.data
    end
    if exec.name == "print_ready_stay" then
      err.stdout_len, err.stderr_len = counts.stdout, counts.stderr
    end
  end)

tools.changed_timeout("stops.timeout_counts", "a timeout has no timeout_seconds", true,
  function(err)
    err.timeout_seconds = nil
  end)

double("stops.unread_output", "unread output comes before the timeout", function(parts)
  wrap(parts.Handle, "next_item", function(original, self)
    local exec = self.exec
    local item = exec.ended and exec.how == "timeout" and exec:take()
    if item then return models.SandboxStreamChunk(item.stream, item.data) end
    return original(self)
  end)
end)

tools.changed_timeout("stops.timeout_held_outside", "no note on a handle's timeout", true,
  function(err)
    err.notes = {}
  end)

double("stops.timeout_held_outside", "the deadline waits for who holds the output", function(parts)
  wrap(parts.Exec, "on_deadline", function(original, self)
    if self.ended or not self.interactive then return original(self) end
    self:stop("deadline")
    if not self:is_held() then return original(self) end
    self.disarm = virtual_time.at_world(0.5, function() self:on_deadline() end)
  end)
end)
