//! pgonce on Citus: a coordinator and two workers of the test's own. Run by `make citus-tests` where `PGONCE_CITUS_BIN`
//! names a PostgreSQL that has it; everywhere else these tests are listed as ignored.

#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::print_stdout)]

mod cluster;
mod distributed;
mod half;
mod inbox;
mod ledger;
mod load;
mod one_shard;
mod outbox;
mod outbox_load;
mod queue;
mod subscriptions;
mod transitions;
