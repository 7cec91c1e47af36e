//! A profile for each user, made of versions that may come late, twice, or in any order.

use std::sync::Arc;

use pgonce::inbox::{Message, Tx};
use pgonce::{Failure, Once, Result};
use pgonce_broker::{Consumer, Handler, Source};

use crate::Db;

/// Applies what users changed.
pub fn consumer<S: Source>(
    once: &Once<Db>,
    source: S,
) -> Consumer<Db, S, impl Handler<Db> + use<S>> {
    Consumer::new(once, "profile", source, apply).json()
}

async fn apply(mut tx: Tx<Db>, message: Arc<Message>) -> Result<()> {
    let said = message.json()?;
    let (Some(user), Some(version), Some(name)) = (
        message.key.as_deref(),
        said["version"].as_i64(),
        said["name"].as_str(),
    ) else {
        // No attempt can succeed: it is poison at once.
        return Err(Failure::permanent("incomplete", "user, version or name is missing").into());
    };
    if tx
        .advance("profile", user, version, &message.tenant)
        .await?
    {
        let sql = "insert into profile values ($1, $2, $3) \
             on conflict (id) do update set name = excluded.name, version = excluded.version";
        let put = sqlx::query(sql).bind(user).bind(name).bind(version);
        put.execute(tx.conn()).await?;
    }
    Ok(())
}
