-- SPDX-License-Identifier: MIT
-- proves: P5
-- What every ledger does; each implementation is run through the same cases.

local helper = require "spec.helper"
require "spec.support.sandbox" -- warms up what lives as long as the process

local LEDGERS = {
  { name = "memory", make = function() return require("sbx.kit.ledger_memory").new() end },
  { name = "SQLite", make = function()
    return require("sbx.kit.ledger_sqlite").new(helper.tmpdir() .. "/ledger.db")
  end },
}

local function row(changes)
  local fields = { id = "a", provider = "p", image = "i", workspace_key = "k",
    workspace_path = "/w", durability = "ephemeral", created_at = 1000.25, expires_at = 1100.25,
    ttl_seconds = 100, labels = { team = "x" }, has_env = false, state = "live", owner = "o" }
  for name, value in pairs(changes or {}) do fields[name] = value end
  return fields
end

for _, each in ipairs(LEDGERS) do
  describe("the ledger in " .. each.name, function()
    local ledger

    before_each(function() ledger = each.make() end)
    after_each(function() if ledger.close then ledger:close() end end)

    it("gives back what was inserted, field by field", function()
      ledger:insert(row())
      assert.same(row(), ledger:get("a"))
      assert.same({ row() }, ledger:list())
      assert.is_nil(ledger:get("b"))
    end)

    it("is empty at first", function()
      assert.same({}, ledger:list())
      assert.is_nil(ledger:get("a"))
      ledger:delete("a")
      assert.is_false(ledger:update("a", "live", { state = "destroying" }))
    end)

    it("takes an id once", function()
      assert.is_true(ledger:insert(row()))
      assert.is_false(ledger:insert(row { image = "other", labels = { more = "labels" } }))
      assert.same(row(), ledger:get("a"))
      ledger:delete("a")
      ledger:insert(row { image = "other" })
      assert.equal("other", ledger:get("a").image)
    end)

    it("is changed by nobody who holds a row", function()
      local mine = row()
      ledger:insert(mine)
      mine.image, mine.labels.team = "changed", "changed"
      local got = ledger:get("a")
      assert.same(row(), got)
      got.image, got.labels.team = "changed", "changed"
      ledger:list()[1].labels.team = "changed"
      assert.same(row(), ledger:get("a"))
    end)

    it("updates a row in the state it is said to be in, and no other", function()
      ledger:insert(row { state = "creating" })
      assert.is_false(ledger:update("a", "live", { image = "x" }))
      assert.equal("i", ledger:get("a").image)
      assert.is_true(ledger:update("a", "creating", { state = "live", workspace_path = "/v" }))
      assert.same(row { workspace_path = "/v" }, ledger:get("a"))
      assert.is_true(ledger:update("a", "live", { expires_at = 2000.5 }))
      assert.is_true(ledger:update("a", "live", { state = "destroying" }))
      assert.is_false(ledger:update("a", "live", { state = "destroying" }))
      assert.is_true(ledger:update("a", "destroying", { state = "destroying" }))
      assert.equal(2000.5, ledger:get("a").expires_at)
    end)

    it("deletes one row, as often as asked", function()
      ledger:insert(row())
      ledger:insert(row { id = "b" })
      ledger:delete("a")
      ledger:delete("a")
      assert.is_nil(ledger:get("a"))
      assert.equal("b", ledger:list()[1].id)
      assert.equal(1, #ledger:list())
    end)

    it("lists in the order of creation, then of ids", function()
      for i = 9, 1, -1 do ledger:insert(row { id = "n" .. i, created_at = 1000 + i % 3 }) end
      local ids = {}
      for i, found in ipairs(ledger:list()) do ids[i] = found.id end
      assert.same({ "n3", "n6", "n9", "n1", "n4", "n7", "n2", "n5", "n8" }, ids)
    end)

    it("updates many fields at once, and unsets those given as false", function()
      ledger:insert(row { state = "creating", claimed_by = "me" })
      assert.is_true(ledger:update("a", "creating",
        { state = "live", claimed_by = false, workspace_path = false, expires_at = 5 }))
      local changed = row { expires_at = 5 }
      changed.workspace_path = nil
      assert.same(changed, ledger:get("a"))
    end)

    it("gives a claim to one, and only on the row as he has read it", function()
      ledger:insert(row())
      local before = ledger:get("a")
      assert.is_true(ledger:claim("a", "one", before))
      assert.same(row { state = "destroying", claimed_by = "one" }, ledger:get("a"))
      assert.is_false(ledger:claim("a", "two", before))
      assert.is_false(ledger:claim("a", "one", before))
      assert.equal("one", ledger:get("a").claimed_by)
      assert.is_true(ledger:claim("a", "two", ledger:get("a"))) -- of a claimant that died
      assert.equal("two", ledger:get("a").claimed_by)
      assert.is_false(ledger:claim("a", "three", row { state = "destroying", claimed_by = "one" }))
      assert.is_false(ledger:claim("a", "three", row { state = "destroying" }))
      assert.equal("two", ledger:get("a").claimed_by)
      assert.is_false(ledger:claim("none", "two", before))
      ledger:delete("a")
      assert.is_false(ledger:claim("a", "one", before))
      assert.is_nil(ledger:get("a"))
    end)

    it("takes a claim back, into the state that it is told", function()
      ledger:insert(row())
      ledger:insert(row { id = "b", claimed_by = "other" })
      ledger:claim("a", "one", row())
      ledger:release("a", "destroying")
      assert.same(row { state = "destroying" }, ledger:get("a"))
      assert.is_true(ledger:claim("a", "two", row { state = "destroying" }))
      ledger:release("a", "live")
      assert.same(row(), ledger:get("a"))
      ledger:release("none", "live")
      assert.equal("other", ledger:get("b").claimed_by)
    end)

    it("deletes a row only as it was read, when that is asked", function()
      ledger:insert(row { claimed_by = "dead" })
      local read = ledger:get("a")
      ledger:delete("a", row { claimed_by = "other" })
      ledger:delete("a", row { claimed_by = "dead", state = "creating" })
      ledger:delete("a", row())
      assert.same(read, ledger:get("a"))
      ledger:delete("a", read)
      assert.is_nil(ledger:get("a"))
      ledger:delete("a", read)
      ledger:insert(row())
      ledger:delete("a", row())
      assert.is_nil(ledger:get("a"))
    end)

    it("forgets the labels with the row", function()
      ledger:insert(row { labels = { one = "1", two = "2" } })
      ledger:delete("a")
      ledger:insert(row { labels = { three = "3" } })
      assert.same({ three = "3" }, ledger:get("a").labels)
    end)

    it("keeps the labels of each row apart", function()
      for i = 1, 9 do
        local labels = {}
        for j = 1, i % 3 do labels["l" .. j] = ("v%d-%d"):format(i, j) end
        ledger:insert(row { id = "n" .. i, created_at = i, labels = labels })
      end
      for i, read in ipairs(ledger:list()) do
        assert.same(ledger:get("n" .. i), read)
        assert.equal(i % 3 > 0 and ("v%d-1"):format(i) or nil, read.labels.l1)
        assert.equal(i % 3 > 1 and ("v%d-2"):format(i) or nil, read.labels.l2)
      end
    end)

    it("keeps texts as they are, any byte but NUL", function()
      local bytes = {}
      for byte = 1, 255 do bytes[byte] = string.char(byte) end
      local all = table.concat(bytes)
      local odd = row { id = "odd\n'\"; --" .. all, image = "\255\254", workspace_path = "/" .. all,
        labels = { ["a'b"] = "\1\255\"", [""] = "", [all] = all, ["long"] = all:rep(500),
          ["123"] = "4.50", ["1e3"] = "0x10" }, owner = "1", claimed_by = "1e5" }
      ledger:insert(odd)
      assert.same(odd, ledger:get(odd.id))
      assert.same({ odd }, ledger:list())
      assert.is_true(ledger:claim(odd.id, all, odd))
      assert.equal(all, ledger:get(odd.id).claimed_by)
      ledger:delete(odd.id)
      assert.same({}, ledger:list())
    end)

    it("keeps numbers as they are", function()
      local numbers = { 0, 1, 0.1, 1 / 3, 1786380000.123456, 2 ^ 31, 2 ^ 32 + 0.5, 2 ^ 53 - 1,
        2 ^ 53, 2 ^ 53 + 2, 1e300, 5e-324, -1.5 }
      for i, number in ipairs(numbers) do
        local kept = row { id = "n" .. i, created_at = number, expires_at = number }
        ledger:insert(kept)
        assert.same(kept, ledger:get(kept.id))
        assert.is_true(ledger:update(kept.id, "live", { expires_at = number + 1 }))
        assert.equal(number + 1, ledger:get(kept.id).expires_at)
      end
      for i, ttl in ipairs { 1, 2 ^ 31, 2 ^ 32, 2 ^ 53 - 1, 2 ^ 53 } do
        ledger:insert(row { id = "t" .. i, ttl_seconds = ttl })
        assert.equal(ttl, ledger:get("t" .. i).ttl_seconds)
      end
    end)

    it("keeps whether there is an env", function()
      ledger:insert(row { has_env = true })
      assert.is_true(ledger:get("a").has_env)
      assert.is_true(ledger:list()[1].has_env)
    end)

    it("knows nothing under an id that is no text", function()
      ledger:insert(row { id = "7" })
      for _, id in ipairs { 7, true, {} } do assert.is_nil(ledger:get(id)) end
      assert.is_nil(ledger:get(nil))
    end)

    it("keeps rows without a path and without labels", function()
      local bare = row { state = "creating" }
      bare.workspace_path, bare.labels = nil, {}
      ledger:insert(bare)
      assert.same(bare, ledger:get("a"))
    end)
  end)
end
