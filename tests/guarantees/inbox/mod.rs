//! The inbox: whatever is delivered, however often, has one effect; what fails is kept, and nothing is lost.

mod accept;
mod cursors;
mod projections;
mod replay;
mod retention;
mod runs;
mod statement;
mod stored;
