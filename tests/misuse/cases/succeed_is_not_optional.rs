//! Work cannot end well without recording its acknowledgement.

use pgonce_misuse::pgonce;
use pgonce::sqlx::{Attempt, Once};
use pgonce::{Done, Intent};

async fn forgets(_attempt: Attempt) -> pgonce::Result<Done> {
    let done: Done = ();
    Ok(done)
}

async fn runs(once: Once, intent: Intent) -> pgonce::Result<Done> {
    once.run(&intent, forgets).await
}

fn main() {}
