//! The guarantees in surroundings that somebody else controls. `make hostile-tests` tries ten thousand operations in each.

#![allow(clippy::unwrap_used)]

#[path = "../kill/address.rs"]
mod address;
mod callers;
mod campaign;
mod outages;
mod search_path;
mod secrets;
mod settings;
mod strikes;
mod tally;
