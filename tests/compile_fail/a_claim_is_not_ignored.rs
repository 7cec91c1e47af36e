//! What was claimed must be ended.

#![deny(unused_must_use)]

use pgonce::driver::sqlx::Sqlx;
use pgonce::{Attempt, Intent, Once};

async fn ignores(once: Once<Sqlx>, intent: Intent, attempt: Attempt<Sqlx>) -> pgonce::Result<()> {
    once.claim(&intent).await?;
    once.run(&intent, |_attempt| async move { todo!() }).await?;
    std::convert::identity(attempt);
    Ok(())
}

fn main() {}
