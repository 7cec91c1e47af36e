//! `pgonce gateway` as its users meet it: the program, real sockets, a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cached;
mod check;
mod database;
mod edge;
mod fixture;
mod life;
mod limits;
mod listener;
mod once;
mod passing;
mod python;
mod secrets;
mod tls;
mod unknown;
mod upstream;
