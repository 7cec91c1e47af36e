//! The crates that the cases use: who links this library gets the very builds that it was compiled with.

pub use {pgonce, sqlx, tokio_postgres};
