//! A transaction that was given by value cannot be committed without recording the success.

use pgonce_misuse::{pgonce, sqlx};
use pgonce::{Claim, Intent, Result};
use pgonce::sqlx::Once;

async fn forgets(pool: sqlx::PgPool, once: Once, intent: Intent) -> Result<()> {
    let tx = pool.begin().await?;
    if let Claim::Run(mut joined) = once.join(tx, &intent).await? {
        sqlx::query("insert into orders default values").execute(joined.conn()).await?;
        tx.commit().await?;
    }
    Ok(())
}

fn main() {}
