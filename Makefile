# Every command of this repository; `make` alone lists them.

.DEFAULT_GOAL := help
.PHONY: help setup run check test citus-tests python-tests node-tests hostile-tests kill-tests region-tests murder replay import-test mutants fuzz demo payments storm bench bench-peers fmt doc nextest lists-test pictures bench-queues

CARGO ?= cargo

# Announces a step, so that a long run shows where it is.
step = @printf '\n== %s\n' "$(1)"

# nextest runs the tests of all programs side by side. Where it is not installed (`make nextest`),
# cargo runs one program after the other. Tests wait more than they compute: three for each core.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
ifeq ($(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes),yes)
TEST = $(CARGO) nextest run --locked --test-threads $$((3 * $(CORES)))
QUICK = -E 'not test(/$(subst $() ,|,$(SLOW))/)'
# What it starts in front of every test only matters to those who stop a run with Ctrl-Z.
export NEXTEST_DOUBLE_SPAWN = 0
else
TEST = $(CARGO) test --locked --no-fail-fast
QUICK = -- $(addprefix --skip ,$(SLOW))
endif

# Tests make and remove some hundred thousand files of private servers: in memory, where there is enough of it, they take two thirds
# of the time. `$(call in_memory,KB)` says yes where so much is free; `make test` needs 1.2 GB at a time there, and 2 GB to run.
in_memory = $(shell test -w /dev/shm && awk '/^MemAvailable:/ && $$2 > $(1) { enough = 1 } END { exit !enough }' /proc/meminfo 2>/dev/null \
	&& test $$(df -kP /dev/shm | awk 'END { print $$4 }') -gt $(1) && echo yes)
ifeq ($(call in_memory,5000000),yes)
check test python-tests node-tests: export TMPDIR = /dev/shm
endif
ifeq ($(call in_memory,12000000),yes)
citus-tests hostile-tests kill-tests region-tests mutants: export TMPDIR = /dev/shm
endif

# What is built from nothing as a rule. (`cargo` by hand and `make check` keep what the next build needs.)
WHOLE = test citus-tests hostile-tests kill-tests region-tests lists-test pictures
# A fifth less to compile than with what incremental compilation keeps.
$(WHOLE): export CARGO_INCREMENTAL = 0
# A minute less without line tables: the message of a panic names its file and line all the same, only backtraces do not.
$(WHOLE): export CARGO_PROFILE_DEV_DEBUG = 0
$(WHOLE): export CARGO_PROFILE_TEST_DEBUG = 0
# Kafka's client library is C: optimized, it takes two and a half times as long.
$(WHOLE): export CFLAGS = -O0 -g0
$(WHOLE): export CXXFLAGS = -O0 -g0

# What `make check` leaves to `make test`: what needs Redis, and what goes on for long: servers that are
# restored or cut off, every setting, and the capabilities beside commands.
SLOW = cached_elsewhere:: and_pgbouncer classics:: migrations:: outages:: outbox:: inbox:: queue:: import:: external::
# What `make check` builds: no broker's client and nothing in C++.
CORE = -p pgonce -p pgonce-http -p pgonce-testkit -p pgonce-tests --all-features

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## find or install PostgreSQL, pgbouncer, brokers and what else the tests need
	$(call step,setup)
	@scripts/setup

# What `cargo clippy -- -D warnings` sets. Said here, other commands of cargo use what it has checked.
WRAPPER = clippy-driver
WARNINGS = -D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
LINTS = RUSTC_WORKSPACE_WRAPPER=$(WRAPPER) CLIPPY_ARGS=$(WARNINGS)

# One pass for both: clippy compiles what is tested, and warnings are errors. Two passes would take a third longer from nothing. For the
# many programs of `make test` it is the other way round: over 14 minutes in one pass, 12 in two.
check: export RUSTC_WORKSPACE_WRAPPER = $(WRAPPER)
check: export CLIPPY_ARGS = $(WARNINGS)
check: ## the quick one: format, lints, unit tests and the guarantees of commands, without brokers
	$(call step,setup)
	@scripts/setup check
	$(call step,format)
	$(CARGO) fmt --all --check
	$(call step,lints and tests)
	$(TEST) $(CORE) --lib --test guarantees $(QUICK)

test: setup ## everything that must hold: format, lints, docs, tests
	$(call step,format)
	$(CARGO) fmt --all --check
	$(call step,lints)
	$(LINTS) $(CARGO) check --locked --workspace --all-targets --all-features
	$(call step,documentation)
	$(LINTS) RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --all-features
	$(call step,tests; those of clients/python and clients/node beside them)
	@scripts/client-tests & clients=$$!; trap 'kill $$clients' INT TERM; \
	$(TEST) --workspace --all-features --tests; rust=$$?; \
	wait $$clients; clients=$$?; cat target/python-tests.log target/node-tests.log; exit $$((rust + clients))
	$(call step,examples in the documentation)
	$(CARGO) test --locked --workspace --all-features --no-fail-fast --doc
	$(call step,citus-tests)
	@if test -n "$$PGONCE_CITUS_BIN"; then $(MAKE) citus-tests; else echo "NOT RUN: PGONCE_CITUS_BIN names no PostgreSQL with Citus"; fi

citus-tests: setup ## the guarantees on Citus, a coordinator and two workers; PGONCE_CITUS_BIN names the folder of its PostgreSQL's programs
	$(call step,citus-tests)
	@test -n "$$PGONCE_CITUS_BIN" || { echo "citus-tests: NOT RUN: PGONCE_CITUS_BIN names no PostgreSQL with Citus"; exit 1; }
	$(CARGO) test --locked --workspace --all-features --test citus -- --ignored --nocapture --test-threads 2

python-tests: setup ## types and tests of clients/python, with the cases of conformance/
	$(call step,python-tests)
	@scripts/python-tests

node-tests: setup ## types and tests of clients/node, with the cases of conformance/
	$(call step,node-tests)
	@scripts/node-tests

kill-tests: setup ## kill servers and workers for minutes, and count; KILL_COUNT says how often
	$(call step,kill-tests)
	KILL_COUNT=$${KILL_COUNT:-200} $(CARGO) test --locked --workspace --all-features --test kill -- --nocapture
	PGONCE_EXHAUSTIVE=1 $(CARGO) test --locked --workspace --all-features --test guarantees killed -- --nocapture
	KILL_COUNT=$${KILL_COUNT:-50} $(CARGO) test --locked --workspace --all-features --test cli consume_k -- --nocapture --test-threads 3

murder: kill-tests

hostile-tests: setup ## ten thousand random operations in each hostile setting; HOSTILE_OPERATIONS says how many
	$(call step,hostile-tests)
	PGONCE_HOSTILE_OPERATIONS=$${HOSTILE_OPERATIONS:-10000} $(CARGO) test --locked --workspace --all-features --test hostile -- --nocapture --test-threads 2

region-tests: setup ## cut the network between three regions again and again; REGION_SCHEDULES says how often (`scripts/setup 14 16 17 18` for more versions)
	$(call step,region-tests)
	REGION_SCHEDULES=$${REGION_SCHEDULES:-50} $(CARGO) test --locked --workspace --all-features --test kill -- regions:: --nocapture --test-threads 2

replay: setup ## replay a million events into projections, again and again; REPLAY_EVENTS says how many
	$(call step,replay)
	PGONCE_REPLAY_EVENTS=$${REPLAY_EVENTS:-1000000} $(CARGO) test --locked --workspace --all-features --test guarantees inbox::replay -- --nocapture

import-test: setup ## import ten million rows, killed twenty times on the way, and beside plain COPY; IMPORT_ROWS says how many
	$(call step,import-test)
	PGONCE_IMPORT_ROWS=$${IMPORT_ROWS:-10000000} $(CARGO) test --locked --release -p pgonce-cli --all-features --features pgonce/faults --test cli killed_again -- --nocapture

fuzz: ## every parser with a million damaged inputs each; FUZZ_INPUTS says how many (`make test` has a few thousand)
	$(call step,fuzz)
	PGONCE_FUZZ=$${FUZZ_INPUTS:-1000000} $(CARGO) test --locked --release --workspace --all-features --lib --bins -- fuzz_ --nocapture

lists-test: setup ## fill ten million intents and events, and time every page of the console and every list; LISTS_ROWS says how many
	$(call step,lists-test)
	PGONCE_LISTS_ROWS=$${LISTS_ROWS:-10000000} $(CARGO) test --locked --workspace --all-features --test cli lists:: -- --ignored --nocapture

pictures: setup ## take the pictures of the console for the README and the book
	$(call step,pictures)
	$(CARGO) test --locked --workspace --all-features --test cli pictures_for_the_book -- --ignored

mutants: setup ## plant known bugs in a copy, one by one: does the suite catch each?
	$(call step,mutants)
	@scripts/mutants $(ONLY)

demo: ## see it work: an orders service under duplicates, crashes and cut wires, and the console beside it; DEMO=--keep to look around afterwards
	$(call step,setup)
	@scripts/setup postgres
	$(call step,demo)
	$(CARGO) run --locked -p pgonce-cli --no-default-features --features lab-demo -- demo $(DEMO)

payments: ## payments through a provider that misbehaves: do its book and ours agree? PAYMENTS_SECONDS for each kind of provider
	$(call step,setup)
	@scripts/setup postgres
	$(call step,payments)
	$(CARGO) run --locked -p payments -- $${PAYMENTS_SECONDS:-60}

run: ## a private PostgreSQL with pgonce, its daemon and its console, on this machine
	$(call step,setup)
	@scripts/setup postgres
	$(call step,run)
	$(CARGO) run --locked -p pgonce-cli -- serve

storm: setup ## cut every path of the protocol at every message in 24 configurations, kill and cut services in Python and Node; an hour
	$(call step,storm)
	$(CARGO) run --release --locked -p pgonce-cli -- storm --random $${STORM_RANDOM:-2m} --ledger target/storm-ledger.json
	$(call step,storms over the HTTP layer and the gateway with outages longer than leases; STORM_INTENTS says how long)
	PGONCE_STORM_INTENTS=$${STORM_INTENTS:-600} $(CARGO) test --locked --workspace --all-features --test storm -- in_a_storm unknown:: --nocapture --test-threads 2
	$(call step,the same without HTTP)
	PGONCE_STORM_INTENTS=$${STORM_INTENTS:-600} $(CARGO) test --locked --workspace --all-features --test guarantees -- outages:: --nocapture --test-threads 2
	$(call step,storm of workers and services in Python and Node)
	PGONCE_STORM_KILLS=$${STORM_KILLS:-50} scripts/node-tests --test-name-pattern=storm

bench: setup ## measure what pgonce costs, beside the bare transaction and the usual recipe
	$(call step,bench)
	PGONCE_COMMIT="$$(git rev-parse --short HEAD 2>/dev/null)" $(CARGO) run --release --locked -p pgonce-cli -- bench

bench-peers: setup ## measure libraries that make the same promise or a weaker one, beside pgonce; they are installed into .cache/peers
	$(call step,bench-peers)
	@bench/peers/run.sh $(PEERS)

bench-queues: setup ## burn jobs down with graphile-worker, pg-boss and pgonce on one private server, from npm in a scratch folder; QUEUE_JOBS, QUEUE_ROUNDS
	$(call step,bench-queues)
	@bench/queues.sh $${QUEUE_JOBS:-50000} $${QUEUE_ROUNDS:-3}

nextest: ## install the test runner cargo-nextest, some minutes
	$(CARGO) install --locked cargo-nextest

fmt: ## format all code
	$(CARGO) fmt --all

doc: ## build the API documentation and open it
	$(CARGO) doc --locked --workspace --no-deps --all-features --open
