-- SPDX-License-Identifier: MIT
--
-- Owner texts of processes that are alive, dead or out of sight, for specs of what belongs to whom.

local owner = require "_sbx.owner"

local M = {}

-- Host, boot, pid namespace, pid and start time of this process.
local function parts()
  local list = {}
  for part in assert(owner.self()):gmatch("[^/]+") do list[#list + 1] = part end
  assert(#list == 5)
  return list
end

local function with(position, value)
  local list = parts()
  list[position] = value
  return table.concat(list, "/")
end

---This process.
M.own = assert(owner.self())

---Another process that lives as long as the specs run.
function M.living()
  local file = assert(io.open("/proc/1/stat"))
  local rest = file:read("*a"):match("^.*%)(.*)$")
  file:close()
  local fields = {}
  for field in rest:gmatch("%S+") do fields[#fields + 1] = field end
  local list = parts()
  list[4], list[5] = "1", fields[20] -- the 22nd, counted from the pid
  return table.concat(list, "/")
end

---One whose pid was given to another process (this one) since.
M.reused_pid = with(5, "1")

---One of before the machine's last boot.
M.other_boot = with(2, "00000000-0000-0000-0000-000000000000")

---One that cannot be seen from here.
M.other_namespace = with(3, "pid:[1]")

M.other_host = with(1, "0123+elsewhere")

---Texts that name nobody.
M.garbage = { "", "x", "a/b/c/d/e", M.own .. "x", (M.own:gsub("/[^/]*$", "/")),
  (M.own:gsub("/%d+/(%d+)$", "/0/%1")), ("x"):rep(5000) }

return M
