//! Installing and migrating: at once, by two, killed anywhere, by an ordinary role.

mod acts;
mod bound;
mod calls;
mod forbidden;
mod killed;
mod refusals;
mod roles;
mod same;
mod test_db;
mod worker;
