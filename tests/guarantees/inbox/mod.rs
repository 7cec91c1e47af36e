//! The inbox: whatever is delivered, however often, has one effect; what fails is kept, and nothing is lost.

mod accept;
mod cursors;
mod projections;
mod retention;
mod stored;
