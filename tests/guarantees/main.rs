//! The guarantees of pgonce, one file each. A test's name is a sentence that could be false.

#![allow(clippy::unwrap_used)]

mod answers;
mod bad_input;
mod book;
mod cached;
mod cached_elsewhere;
mod cancellation;
mod classics;
mod conflicts;
mod conformance;
mod durability;
mod example;
mod failures;
mod fences;
mod fingerprints;
mod heartbeats;
mod interventions;
mod joined;
mod ledger;
mod limits;
mod locks;
mod lost_commit;
mod misuse;
mod names;
mod one_effect;
mod one_statement;
mod optimistic;
mod planted;
mod purge;
mod queue;
mod recording;
mod recovery;
mod retention;
mod savepoints;
mod sealed;
mod search_path;
mod secrets;
mod silence;
mod sql_edges;
mod sql_surface;
mod states;
mod storm_finds;
mod tenants;
mod tidy;
mod transient;
mod transitions;
mod unique;
mod waiting;
mod words;
mod zombies;

mod import;
mod inbox;
mod migrations;
mod outbox;
