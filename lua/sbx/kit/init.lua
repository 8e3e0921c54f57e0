-- SPDX-License-Identifier: MIT
--
-- What a provider builds on (SPEC P1): the base classes of its sandbox and its session.

return {
  ManagedSandbox = require "sbx.kit.sandbox",
  ManagedSandboxSession = require "sbx.kit.session",
}
