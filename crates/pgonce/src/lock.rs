//! Named locks for what no row or constraint stands for: one close per merchant and day, one
//! import per file. They last until the end of the transaction.

use std::time::Duration;

use crate::Result;
use crate::driver::{Connection, Param};
use crate::lease::interval;
use crate::statements::Statements;

/// Takes the lock if it is free.
pub(crate) async fn try_lock<C: Connection>(
    conn: &mut C,
    statements: &Statements,
    name: &str,
    tenant: &str,
) -> Result<bool> {
    let params = [Param::Text(Some(name)), Param::Text(Some(tenant))];
    held(conn.query(&statements.try_lock, &params).await?)
}

/// Waits for the lock, at most so long.
pub(crate) async fn lock<C: Connection>(
    conn: &mut C,
    statements: &Statements,
    name: &str,
    at_most: Duration,
    tenant: &str,
) -> Result<bool> {
    let wait = interval(at_most);
    let params = [
        Param::Text(Some(name)),
        Param::Text(Some(&wait)),
        Param::Text(Some(tenant)),
    ];
    held(conn.query(&statements.lock, &params).await?)
}

fn held(rows: Vec<crate::driver::Row>) -> Result<bool> {
    Ok(rows
        .first()
        .and_then(|row| row.first())
        .is_some_and(|cell| cell.as_deref() == Some("true")))
}
