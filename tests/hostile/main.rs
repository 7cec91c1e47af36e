//! The guarantees in surroundings that somebody else controls.

#![allow(clippy::unwrap_used)]

mod search_path;
