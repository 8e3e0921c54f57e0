-- SPDX-License-Identifier: MIT
-- proves: P5
-- What every ledger does; each implementation is run through the same cases.

local LEDGERS = {
  memory = function() return require("sbx.kit.ledger_memory").new() end,
}

local function row(changes)
  local fields = { id = "a", image = "i", workspace_key = "k", workspace_path = "/w",
    durability = "ephemeral", created_at = 1000.25, expires_at = 1100.25, ttl_seconds = 100,
    labels = { team = "x" }, state = "live" }
  for name, value in pairs(changes or {}) do fields[name] = value end
  return fields
end

for name, make in pairs(LEDGERS) do
  describe("the ledger in " .. name, function()
    local ledger

    before_each(function() ledger = make() end)

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
      ledger:insert(row())
      assert.is_false((pcall(ledger.insert, ledger, row { image = "other" })))
      assert.equal("i", ledger:get("a").image)
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
      local fields = { labels = { a = "b" } }
      ledger:update("a", "live", fields)
      fields.labels.a = "changed"
      assert.same({ a = "b" }, ledger:get("a").labels)
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
      for i, each in ipairs(ledger:list()) do ids[i] = each.id end
      assert.same({ "n3", "n6", "n9", "n1", "n4", "n7", "n2", "n5", "n8" }, ids)
    end)

    it("keeps numbers and texts as they are", function()
      local odd = row { id = "odd\n'\"; --", created_at = 2 ^ 53, expires_at = 1786380000.123456,
        ttl_seconds = 2 ^ 53, labels = { ["a'b"] = "\1\255\"", [""] = "" }, image = "é" }
      ledger:insert(odd)
      assert.same(odd, ledger:get(odd.id))
    end)

    it("keeps rows without a path and without labels", function()
      local bare = row { state = "creating" }
      bare.workspace_path, bare.labels = nil, {}
      ledger:insert(bare)
      assert.same(bare, ledger:get("a"))
    end)
  end)
end
