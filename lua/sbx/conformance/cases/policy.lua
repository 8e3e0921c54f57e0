-- SPDX-License-Identifier: MIT
--
-- Conformance cases: what create_session refuses, loudly.
--
-- A stricter policy is bound for the one call that it has to refuse, and the sandbox's own is put
-- back at once: the refusal comes before anything is begun.

local policy = require "sbx.policy"

local cases = {}

local function case(name, ids, promise, run, needs)
  cases[#cases + 1] = { name = "policy." .. name, ids = ids, promise = promise, run = run,
    needs = needs }
end

local function check_refused(t, prefix, what, spec)
  local ok, result = pcall(t.sandbox.create_session, t.sandbox, spec)
  if ok then t:note(result) end
  local err = t:raises("SandboxSpecRejectedError", "create_session with " .. what, function()
    if not ok then error(result, 0) end
  end)
  t:equal(prefix, err.message:sub(1, #prefix), "the start of the refusal of " .. what)
  for _, info in ipairs(t.sandbox:list_sessions()) do
    t:check(info.workspace_key ~= spec.workspace_key, "a refused session is listed")
  end
end

local function under_policy(t, fields, what, changes)
  local own = t.sandbox._policy
  local function restore() t.sandbox:bind_policy(own) end
  t:undo(restore)
  t.sandbox:bind_policy(policy.SandboxPolicy(fields))
  local ok, err = pcall(check_refused, t, "policy refused:", what, t:spec(changes))
  restore()
  if not ok then error(err, 0) end
end

case("network_ceiling", "P2", "a network looser than the policy's ceiling is refused, with a text "
  .. "that starts `policy refused:`", function(t)
  under_policy(t, { egress = "none", isolation = "none" }, "a network above the ceiling",
    { network = "egress" })
end)

case("isolation_floor", "P2", "an isolation below the policy's floor is refused, with a text that "
  .. "starts `policy refused:`", function(t)
  under_policy(t, { isolation = "vm" }, "an isolation below the floor", { isolation = "none" })
end)

case("durable_off", "P2", "a persistent session is refused while the policy's durable is off, with "
  .. "a text that starts `policy refused:`", function(t)
  under_policy(t, { isolation = "none", durable = false }, "durability persistent",
    { durability = "persistent" })
end)

case("reserved_labels", "P2", "a label in the kit's namespace is refused, with a text that starts "
  .. "`policy refused:`", function(t)
  for _, label in ipairs { policy.LABEL_NAMESPACE, policy.LABEL_NAMESPACE .. ".owner" } do
    check_refused(t, "policy refused:", "label " .. label, t:spec { labels = { [label] = "x" } })
  end
end)

case("unhonoured_spec", "P2", "a spec that the provider cannot honour is refused, with a text that "
  .. "starts `provider cannot honor:`, and never downgraded", function(t)
  for _, rejected in ipairs(t.config.reject_specs) do
    check_refused(t, "provider cannot honor:", rejected.why, t:spec(rejected.spec))
  end
end, function(config)
  if #config.reject_specs == 0 then return "the config names no spec that is refused" end
end)

return cases
