//! After succeed the attempt is gone.

use pgonce_misuse::pgonce;
use pgonce::sqlx::Attempt;

async fn goes_on(mut attempt: Attempt) {
    let _ = attempt.succeed("done").await;
    let _ = attempt.conn();
}

fn main() {}
