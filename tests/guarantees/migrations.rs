//! Installing and migrating: at once, by two, killed anywhere, by an ordinary role.

mod acts;
mod authors;
mod bound;
mod calls;
mod forbidden;
mod killed;
mod locks;
mod named;
mod owners;
mod refusals;
mod restored;
mod roles;
mod same;
mod shared;
mod test_db;
mod worker;
