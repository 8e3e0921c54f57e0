# SPDX-License-Identifier: MIT
#
# sbxlua: build, check and install. Every product goes to build/$(FLAVOUR)/:
#
#   _sbx.so     the Lua C module (for any LuaJIT or Lua 5.1 host)
#   _sbx/*.so   bindings of libraries that only some programs need
#   sbxlua      the host program, the same C modules preloaded
#   test_*      one program per runtime/tests/test_*.c, no Lua in it
#   bench_*     one program per bench/*.c
#   fixtures/*  one program per spec/fixtures/*.c, never instrumented
#
# Files are found by wildcard: a core is any runtime/*.c but lua_*.c and sbxlua.c.

FLAVOUR ?= release
PREFIX  ?= /usr/local
VERSION := 0.1.0-dev
OUT     := build/$(FLAVOUR)

# --- sources -----------------------------------------------------------------------------------

# A binding that brings a library of its own is a module of its own, so that a program that does
# without it neither loads it nor needs it installed: runtime/lua_NAME.c -> _sbx/NAME.so.
EXTRAS   := sqlite
LIBS.sqlite := sqlite3
EXTRA_C  := $(EXTRAS:%=runtime/lua_%.c)
BINDINGS := $(filter-out $(EXTRA_C),$(wildcard runtime/lua_*.c))
CORES    := $(filter-out $(BINDINGS) $(EXTRA_C) runtime/sbxlua.c,$(wildcard runtime/*.c))
TESTS    := $(wildcard runtime/tests/test_*.c)
FIXTURES := $(wildcard spec/fixtures/*.c)
BENCHES  := $(wildcard bench/*.c)
C_FILES  := $(wildcard runtime/*.[ch] runtime/tests/*.[ch] spec/fixtures/*.[ch] bench/*.[ch])
LUA_FILES = $(foreach dir,$(wildcard lua providers),$(shell find $(dir) -name '*.lua' | sort))
SCRIPTS  := .ci/deps .ci/run spec/run

object       = $(patsubst %.c,$(OUT)/obj/%.o,$(1))
CORE_OBJ    := $(call object,$(CORES))
BINDING_OBJ := $(call object,$(BINDINGS))
HOST_OBJ    := $(call object,runtime/sbxlua.c)
EXTRA_OBJ   := $(call object,$(EXTRA_C))
EXTRA_SO    := $(EXTRAS:%=$(OUT)/_sbx/%.so)
TEST_BIN    := $(patsubst runtime/tests/%.c,$(OUT)/%,$(TESTS))
FIXTURE_BIN := $(patsubst spec/fixtures/%.c,$(OUT)/fixtures/%,$(FIXTURES))
BENCH_BIN   := $(patsubst bench/%.c,$(OUT)/bench_%,$(BENCHES))
ALL_OBJ     := $(CORE_OBJ) $(BINDING_OBJ) $(EXTRA_OBJ) $(HOST_OBJ) \
               $(call object,$(TESTS) $(FIXTURES) $(BENCHES))

# --- flags -------------------------------------------------------------------------------------

CC        = gcc
OPT.asan  = -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
OPT.tsan  = -O1 -fno-omit-frame-pointer -fsanitize=thread
OPT      := $(or $(OPT.$(FLAVOUR)),-O2)
SANITIZE := $(filter -fsanitize=%,$(OPT))
WARNINGS  = -Wall -Wextra -Wpedantic -Wconversion -Wshadow $(if $(WERROR),-Werror)
BASE      = -std=gnu11 -g $(WARNINGS) -fPIC -fvisibility=hidden -pthread -MMD -MP -Iruntime

# Asked of pkg-config once, and only when something is compiled: `make deps` may have to come first.
LIBRARIES   = libuv
LIB_CFLAGS  = $(eval LIB_CFLAGS := $$(shell pkg-config --cflags $(LIBRARIES)))$(LIB_CFLAGS)
LIB_LIBS    = $(eval LIB_LIBS := $$(shell pkg-config --libs $(LIBRARIES)))$(LIB_LIBS)
LUA_CFLAGS  = $(eval LUA_CFLAGS := $$(shell pkg-config --cflags luajit))$(LUA_CFLAGS)
LUA_LIBS    = $(eval LUA_LIBS := $$(shell pkg-config --libs luajit))$(LUA_LIBS)

COMPILE = $(CC) $(BASE) $(OPT) $(CPPFLAGS) $(CFLAGS)
LINK    = $(CC) -pthread $(SANITIZE) $(LDFLAGS)

# Sub-makes build in parallel unless the caller has chosen a -j of his own.
SUB = --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

# --- build -------------------------------------------------------------------------------------

.PHONY: build program tests fixtures bench-programs objects
build: program tests fixtures bench-programs

program: $(OUT)/_sbx.so $(EXTRA_SO) $(OUT)/sbxlua
tests: $(TEST_BIN)
fixtures: $(FIXTURE_BIN)
bench-programs: $(BENCH_BIN)
objects: $(ALL_OBJ)

# nodelete: the engine's thread outlives a lua_close that would unload the module below it.
$(OUT)/_sbx.so: $(CORE_OBJ) $(BINDING_OBJ)
	$(LINK) -shared -Wl,-z,nodelete -Wl,-z,now -o $@ $^ $(LIB_LIBS)

$(EXTRA_SO): $(OUT)/_sbx/%.so: $(OUT)/obj/runtime/lua_%.o
	@mkdir -p $(@D)
	$(LINK) -shared -Wl,-z,now -o $@ $^ $$(pkg-config --libs $(LIBS.$*))

# -rdynamic: C modules such as luv.so take the Lua API from the program.
$(OUT)/sbxlua: $(CORE_OBJ) $(BINDING_OBJ) $(HOST_OBJ)
	$(LINK) -rdynamic -o $@ $^ $(LUA_LIBS) $(LIB_LIBS)

$(TEST_BIN): $(OUT)/%: $(OUT)/obj/runtime/tests/%.o $(CORE_OBJ)
	$(LINK) -o $@ $^ $(LIB_LIBS)

$(BENCH_BIN): $(OUT)/bench_%: $(OUT)/obj/bench/%.o
	$(LINK) -o $@ $^ $(LIB_LIBS)

$(FIXTURE_BIN): $(OUT)/fixtures/%: $(OUT)/obj/spec/fixtures/%.o
	@mkdir -p $(@D)
	$(CC) -pthread $(LDFLAGS) -o $@ $^

# Fixtures run inside the sandbox: as plain programs, whatever the flavour.
$(OUT)/obj/spec/fixtures/%.o: OPT = -O2
$(BINDING_OBJ) $(EXTRA_OBJ) $(HOST_OBJ): LUA_INCLUDE = $(LUA_CFLAGS)
$(HOST_OBJ): CPPFLAGS += -DSBXLUA_VERSION='"$(VERSION)"'

$(OUT)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(COMPILE) $(LIB_CFLAGS) $(LUA_INCLUDE) -c -o $@ $<

-include $(ALL_OBJ:.o=.d)

# --- run and test ------------------------------------------------------------------------------

.PHONY: run test asan tsan valgrind bench deps
run:
	@.ci/deps run
	@$(MAKE) $(SUB) -s program
	@$(OUT)/sbxlua examples/quickstart.lua

test:
	@.ci/deps test
	@$(MAKE) $(SUB) -s build
	@spec/run $(RUN_OPTIONS)

asan:
	@.ci/deps test
	@$(MAKE) $(SUB) -s FLAVOUR=asan build
	@spec/run --flavour asan $(RUN_OPTIONS)

tsan:
	@.ci/deps test
	@$(MAKE) $(SUB) -s FLAVOUR=tsan tests
	@spec/run --flavour tsan --c $(RUN_OPTIONS)

valgrind:
	@.ci/deps test
	@$(MAKE) $(SUB) -s program tests
	@spec/run --valgrind --c $(RUN_OPTIONS)

bench:
	@.ci/deps run
	@$(MAKE) $(SUB) -s program fixtures bench-programs
	@$(OUT)/sbxlua bench/run.lua

deps:
	@.ci/deps test

.PHONY: conformance-matrix
# Every conformance case against every double that should fail it, and only it.
conformance-matrix:
	@.ci/deps run
	@$(MAKE) $(SUB) -s program
	@$(OUT)/sbxlua spec/conformance/matrix.lua

# --- lint and format ---------------------------------------------------------------------------

.PHONY: lint lint-lua lint-c lint-sh lint-exports lint-rockspec fmt fmt-check
lint: lint-lua lint-c lint-sh lint-exports lint-rockspec

lint-lua:
	luacheck --quiet --no-color $(wildcard lua providers spec examples bench)

lint-c:
	@$(MAKE) $(SUB) -s FLAVOUR=lint-gcc CC=gcc WERROR=1 objects
	@$(MAKE) $(SUB) -s FLAVOUR=lint-clang CC=clang WERROR=1 objects

lint-sh:
	@if command -v shellcheck >/dev/null; then shellcheck $(SCRIPTS); \
	else echo 'lint-sh: shellcheck is not installed, skipped'; fi

lint-exports:
	@$(MAKE) $(SUB) -s $(OUT)/_sbx.so $(EXTRA_SO)
	@! nm -D --defined-only $(OUT)/_sbx.so $(EXTRA_SO) | grep ' [A-Z] ' | grep -v ' luaopen__sbx_' || \
	{ echo 'lint-exports: the C modules may export luaopen__sbx_* only'; false; }

# LuaRocks has no wildcards: each source the rock needs must stand in the rockspec.
lint-rockspec:
	@missing=; for file in $(CORES) $(BINDINGS) $(EXTRA_C) $(LUA_FILES); do \
	  grep -qF "\"$$file\"" sbxlua-scm-1.rockspec || missing="$$missing $$file"; \
	done; \
	test -z "$$missing" || { echo "lint-rockspec: not in sbxlua-scm-1.rockspec:$$missing"; false; }

fmt:
	clang-format -i $(C_FILES)

fmt-check:
	clang-format --dry-run --Werror $(C_FILES)

# --- install -----------------------------------------------------------------------------------

BIN_DIR = $(DESTDIR)$(PREFIX)/bin
LUA_DIR = $(DESTDIR)$(PREFIX)/share/lua/5.1
LIB_DIR = $(DESTDIR)$(PREFIX)/lib/lua/5.1

.PHONY: install uninstall clean
install: program
	install -d $(BIN_DIR) $(LUA_DIR) $(LIB_DIR)
	install -m 755 $(OUT)/sbxlua $(BIN_DIR)/sbxlua
	install -m 755 $(OUT)/_sbx.so $(LIB_DIR)/_sbx.so
	install -d $(LIB_DIR)/_sbx
	install -m 755 $(EXTRA_SO) $(LIB_DIR)/_sbx
	for file in $(LUA_FILES); do case $$file in \
	  lua/*) install -D -m 644 $$file $(LUA_DIR)/$${file#lua/} ;; \
	  *) install -D -m 644 $$file $(LUA_DIR)/sbx/$$file ;; \
	esac || exit 1; done

uninstall:
	rm -f $(BIN_DIR)/sbxlua $(LIB_DIR)/_sbx.so
	rm -rf $(LUA_DIR)/sbx $(LIB_DIR)/_sbx

clean:
	rm -rf build
