//! A call in a transaction of its own.

use crate::driver::{Connection as _, Driver, Param, Row, Session as _, Settled, Statement};
use crate::{Error, Result};

/// How it begins, whatever isolation a role has by default: what is read after a lock must be new.
pub(crate) const BEGIN: &str = "begin isolation level read committed read write";

/// Makes one call and commits it with `end`; its rows count only once that has happened.
pub(crate) async fn call_alone<D: Driver>(
    driver: &D,
    begin: &str,
    statement: &Statement,
    params: &[Param<'_>],
    end: &Statement,
) -> Result<Vec<Row>> {
    let mut session = driver.acquire().await?;
    let called = match session.open(begin).await {
        Ok(()) => session.query(statement, params).await,
        Err(error) => Err(error),
    };
    match called {
        Ok(rows) => match session.settle(end, &[]).await {
            Settled::Committed(_) => {
                session.keep();
                Ok(rows)
            }
            Settled::Refused(error) => Err(error),
            Settled::Unknown(why) => Err(Error::Uncertain(why)),
        },
        Err(error) => {
            if !matches!(error, Error::Disconnected(_)) && session.rollback().await.is_ok() {
                session.keep();
            }
            Err(error)
        }
    }
}
