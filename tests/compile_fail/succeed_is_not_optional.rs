//! Work cannot end well without recording its acknowledgement.

use pgonce::driver::sqlx::Sqlx;
use pgonce::{Attempt, Done, Intent, Once};

async fn forgets(_attempt: Attempt<Sqlx>) -> pgonce::Result<Done> {
    let done: Done = ();
    Ok(done)
}

async fn runs(once: Once<Sqlx>, intent: Intent) -> pgonce::Result<Done> {
    once.run(&intent, forgets).await
}

fn main() {}
