//! `pgonce gateway` as its users meet it: the program, real sockets, a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod check;
mod database;
mod doubt;
mod life;
mod limits;
mod once;
mod passing;
mod place;
mod python;
mod tls;
mod upstream;
