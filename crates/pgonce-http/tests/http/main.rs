//! The promises of the HTTP layer, one file each, over real sockets and on a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod support;

mod busy;
mod caps;
mod conflicts;
mod cuts;
mod database_down;
mod disconnects;
mod duplicates;
mod extractors;
mod fidelity;
mod isolation;
mod kept;
mod keys;
mod logs;
mod outcomes;
mod panics;
mod regions;
mod replays;
mod silent;
mod stale;
mod unclear;
