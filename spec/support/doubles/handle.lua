-- SPDX-License-Identifier: MIT
--
-- Doubles that break what a provider owes about a handle's output and stdin (see
-- spec.support.doubles).

local models = require "sbx.models"
local task = require "sbx.task"
local waits = require "sbx.waits"
local tools = require "spec.support.doubles.tools"

local double, wrap, raise = tools.double, tools.wrap, tools.raise

local LARGE = 8 * 1024 * 1024

double("handle.conversation", "stdin is handed on when it is closed", function(parts)
  wrap(parts.Process, "read", function(original, self)
    local exec = self.exec
    local small = exec.interactive and exec.name == "cat"
    while small and exec.stdin_size < 1024 and not exec.stdin_closed do
      self:pause(function(wake) exec.stdin_reader = wake end)
    end
    return original(self)
  end)
end)

double("handle.conversation", "stdin is closed after the first write", function(parts)
  wrap(parts.Handle, "write_stdin", function(original, self, data)
    original(self, data)
    if data == "ping\n" then self:close_stdin() end
  end)
end)

double("handle.one_exit_item", "the exit item comes twice", function(parts)
  wrap(parts.Handle, "last_item", function(original, self)
    local exec = self.exec
    if self.exit_given and not self.twice and not exec.killed then
      self.twice = true
      return models.SandboxStreamExit(exec.exit_code)
    end
    return original(self)
  end)
end)

double("handle.one_stream", "every output() starts at the beginning", function(parts)
  wrap(parts.Handle, "output", function(original, self)
    self.exec.taken = 0
    return original(self)
  end)
end)

double("handle.chunks", "an empty chunk at the end of a stream", function(parts)
  wrap(parts.Handle, "last_item", function(original, self)
    if not self.empty_given then
      self.empty_given = true
      return models.SandboxStreamChunk("stderr", "")
    end
    return original(self)
  end)
end)

double("handle.streams", "two chunks of a stream change places", function(parts)
  wrap(parts.Handle, "next_item", function(original, self)
    local items = self.exec.items
    if not self.swapped and self.exec.name == "lines_on_both" and #items > 4 then
      self.swapped = true
      items[2], items[4] = items[4], items[2]
    end
    return original(self)
  end)
end)

double("handle.arrival_order", "stdout is read before stderr", function(parts)
  wrap(parts.Exec, "take", function(original, self)
    for i = self.taken + 1, #self.items do
      if self.items[i].stream == "stdout" then
        table.insert(self.items, self.taken + 1, table.remove(self.items, i))
        break
      end
    end
    return original(self)
  end)
end)

double("handle.bytes", "line ends of stdin are converted", function(parts)
  wrap(parts.Handle, "write_stdin", function(original, self, data)
    return original(self, #data < 1024 and data:gsub("\r\n", "\n") or data)
  end)
end)

double("handle.concurrent_writes", "a write is cut in pieces", function(parts)
  wrap(parts.Handle, "write_stdin", function(original, self, data)
    if #data ~= 65536 then return original(self, data) end
    original(self, data:sub(1, 32768))
    task.sleep(0.001)
    original(self, data:sub(32769))
  end)
end)

double("handle.unread_echo", "a command stalls on unread output", function(parts)
  wrap(parts.Process, "out", function(original, self, stream, data)
    local exec = self.exec
    if not (exec.interactive and exec.name == "cat" and #data > 1024 * 1024) then
      return original(self, stream, data)
    end
    exec.stdin_size = exec.stdin_size + #data -- not taken yet
    while not exec.being_read do
      self:pause(function(wake) exec.reader_came = wake end)
    end
    exec.stdin_size = exec.stdin_size - #data
    original(self, stream, data)
  end)
  wrap(parts.Handle, "next_item", function(original, self)
    self.exec.being_read = true
    if self.exec.reader_came then self.exec.reader_came() end
    return original(self)
  end)
end)

double("handle.write_after_exit", "a write after the exit is an untyped error", function(parts)
  wrap(parts.Handle, "write_stdin", function(original, self, data)
    if self.exec.exited and not self.exec.killed then error("EPIPE", 0) end
    return original(self, data)
  end)
end)

double("handle.write_after_close", "a write after close_stdin is dropped", function(parts)
  wrap(parts.Handle, "write_stdin", function(original, self, data)
    if self.exec.stdin_closed then return end
    return original(self, data)
  end)
end)

double("handle.write_after_kill", "a write after kill() is dropped", function(parts)
  wrap(parts.Handle, "write_stdin", function(original, self, data)
    if self.exec.killed then return end
    return original(self, data)
  end)
end)

double("handle.waiting_write", "a kill does not end a waiting write", function(parts)
  wrap(parts.Exec, "feed", function(original, self, data)
    local ok = original(self, data)
    if not ok and #data > LARGE then waits.latch():wait() end
    return ok
  end)
end)

double("handle.waiting_write", "a write of any size is taken at once", function(parts)
  wrap(parts.Exec, "feed", function(original, self, data)
    if self.name ~= "sleep_unread" or not self:takes_input() then return original(self, data) end
    return true
  end)
end)

double("handle.close_stdin_again", "the second close_stdin raises", function(parts)
  wrap(parts.Handle, "close_stdin", function(original, self)
    if self.exec.stdin_closed then raise("the stdin is closed") end
    return original(self)
  end)
end)

double("handle.not_found", "an interactive command that is not found raises", function(parts)
  wrap(parts.Session, "exec_start", function(original, self, argv, options)
    if type(argv) == "table" and argv[1] == "sbx-no-such-command" then raise("not found") end
    return original(self, argv, options)
  end)
end)

tools.waits_for_output("handle.wait_exit", "a handle does not know wait=exit", true)
