//! After succeed the attempt is gone.

use pgonce::driver::sqlx::Sqlx;
use pgonce::{Ack, Attempt};

async fn goes_on(mut attempt: Attempt<Sqlx>) {
    let _ = attempt.succeed(Ack::status()).await;
    let _ = attempt.conn();
}

fn main() {}
