# Every command of this repository; `make` alone lists them.

.DEFAULT_GOAL := help
.PHONY: help setup test python-tests kill-tests replay mutants demo storm bench fmt doc

CARGO ?= cargo

# Announces a step, so that a long run shows where it is.
step = @printf '\n== %s\n' "$(1)"

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## find or install PostgreSQL, pgbouncer, brokers and what else the tests need
	$(call step,setup)
	@scripts/setup

test: setup ## everything that must hold: format, lints, docs, tests
	$(call step,format)
	$(CARGO) fmt --all --check
	$(call step,lints)
	$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings
	$(call step,documentation)
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --all-features
	$(call step,tests)
	$(CARGO) test --locked --workspace --all-features
	$(call step,python-tests)
	@scripts/python-tests

python-tests: setup ## types and tests of clients/python, with the cases of conformance/
	$(call step,python-tests)
	@scripts/python-tests

kill-tests: setup ## kill servers and workers for minutes, and count; KILL_COUNT says how often
	$(call step,kill-tests)
	KILL_COUNT=$${KILL_COUNT:-200} $(CARGO) test --locked -p pgonce-tests --test kill -- --nocapture

replay: setup ## replay a million events into projections, again and again; REPLAY_EVENTS says how many
	$(call step,replay)
	PGONCE_REPLAY_EVENTS=$${REPLAY_EVENTS:-1000000} $(CARGO) test --locked -p pgonce-tests --test guarantees inbox::replay -- --nocapture

mutants: setup ## plant known bugs in a copy, one by one: does the suite catch each?
	$(call step,mutants)
	@scripts/mutants $(ONLY)

demo: setup ## see it work: an orders service under duplicates, crashes and cut wires
	$(call step,demo)
	$(CARGO) run --release --locked -p pgonce-cli -- demo

storm: setup ## cut every path of the protocol at every message; the whole of it, some minutes
	$(call step,storm)
	$(CARGO) run --release --locked -p pgonce-cli -- storm --random $${STORM_RANDOM:-2m} --ledger target/storm-ledger.json

bench: setup ## measure what pgonce costs, beside the bare transaction and the usual recipe
	$(call step,bench)
	PGONCE_COMMIT="$$(git rev-parse --short HEAD 2>/dev/null)" $(CARGO) run --release --locked -p pgonce-cli -- bench

fmt: ## format all code
	$(CARGO) fmt --all

doc: ## build the API documentation and open it
	$(CARGO) doc --locked --workspace --no-deps --all-features --open
