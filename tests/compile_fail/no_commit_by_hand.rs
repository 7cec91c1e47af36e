//! An attempt has no commit of its own, and the client inside has no transactions.

use pgonce::Attempt;
use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;

async fn commits(attempt: Attempt<Sqlx>) {
    attempt.commit().await;
}

async fn nests(mut attempt: Attempt<TokioPostgres>) {
    let _ = attempt.conn().transaction().await;
}

fn main() {}
