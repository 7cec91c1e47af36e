//! An attempt has no commit of its own, and the client inside has no transactions.

use pgonce_misuse::pgonce;
use pgonce::{sqlx, tokio_postgres};

async fn commits(attempt: sqlx::Attempt) {
    attempt.commit().await;
}

async fn nests(mut attempt: tokio_postgres::Attempt) {
    let _ = attempt.conn().transaction().await;
}

fn main() {}
