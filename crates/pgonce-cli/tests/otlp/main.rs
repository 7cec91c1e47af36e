//! Traces over OTLP: from a request through claim, effect, commit, outbox, broker and inbox, as one; with nothing secret in
//! them; and a collector that is gone or silent disturbs nothing.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod chain;
mod collector;
// A gateway in a process of its own, as its other tests have it.
#[allow(dead_code)]
#[path = "../gateway/fixture.rs"]
mod fixture;
mod library;
mod unwell;
