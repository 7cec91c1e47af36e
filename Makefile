# Every command of this repository; `make` alone lists them.

.DEFAULT_GOAL := help
.PHONY: help setup test demo fmt doc

CARGO ?= cargo

# Announces a step, so that a long run shows where it is.
step = @printf '\n== %s\n' "$(1)"

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## find or install PostgreSQL, pgbouncer and what else the tests need
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

demo: setup ## see it work: an orders service under duplicates, crashes and cut wires
	$(call step,demo)
	$(CARGO) run --release --locked -p pgonce-cli -- demo

fmt: ## format all code
	$(CARGO) fmt --all

doc: ## build the API documentation and open it
	$(CARGO) doc --locked --workspace --no-deps --all-features --open
