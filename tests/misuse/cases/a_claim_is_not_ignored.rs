//! What was claimed must be ended.

#![deny(unused_must_use)]

use pgonce_misuse::pgonce;
use pgonce::Intent;
use pgonce::sqlx::{Attempt, Once};

async fn ignores(once: Once, intent: Intent, attempt: Attempt) -> pgonce::Result<()> {
    once.claim(&intent).await?;
    once.run::<i64, _, _>(&intent, |_attempt| async move { todo!() }).await?;
    std::convert::identity(attempt);
    Ok(())
}

fn main() {}
