//! Installing and migrating: at once, by two, killed anywhere, by an ordinary role.

mod killed;
mod place;
mod refusals;
mod roles;
mod same;
