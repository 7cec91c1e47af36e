//! Four consumers, each a handler of a few lines. None of them knows a broker, a duplicate or an
//! acknowledgement: whatever comes, however often, is applied once.

pub mod balance;
pub mod invoice;
pub mod profile;
pub mod webhook;

use pgonce::Once;
use pgonce::driver::sqlx::Sqlx;

/// The driver of these examples.
pub type Db = Sqlx;

/// Tables and functions of the examples, for a database with pgonce in it.
pub const SCHEMA: &str = include_str!("../schema.sql");

/// pgonce over a database, with sessions that cannot fall silent for ever.
pub async fn connect(url: &str) -> Result<Once<Db>, sqlx::Error> {
    let options = Sqlx::with_limits(url.parse()?);
    Ok(Once::sqlx(sqlx::PgPool::connect_with(options).await?))
}
