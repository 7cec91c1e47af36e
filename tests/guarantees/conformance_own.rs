//! Steps of a case in a transaction of the caller's own, over the library that is tested.

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::Message;
use pgonce::{Claim, InTransaction, Isolation, Once, Result};
use pgonce_tests::TestDriver;
use serde_json::Value;
use sqlx::{Connection as _, PgConnection, Postgres};
use tokio_postgres::{IsolationLevel, NoTls};

use crate::conformance::{Found, ack, event, intent, list, not_held, note_done, text};

/// A library in which a caller opens transactions by hand.
pub(crate) trait OwnTransactions: TestDriver {
    /// Opens a transaction at `url`, does the step in it, and commits however the work ended, or rolls back where the step
    /// says so.
    async fn in_own_transaction(
        url: &str,
        isolation: Isolation,
        once: &Once<Self>,
        step: &Value,
        found: &mut Found,
    ) -> Result<()>;
}

impl OwnTransactions for Sqlx {
    async fn in_own_transaction(
        url: &str,
        isolation: Isolation,
        once: &Once<Self>,
        step: &Value,
        found: &mut Found,
    ) -> Result<()> {
        let mut conn = PgConnection::connect(url).await?;
        let begin = match isolation {
            Isolation::RepeatableRead => "begin isolation level repeatable read",
            Isolation::Serializable => "begin isolation level serializable",
            _ => "begin",
        };
        let mut tx = conn.begin_with(begin).await?;
        let ended = match act(once, &mut tx, step, found).await? {
            End::Commit => tx.commit().await,
            End::Rollback => tx.rollback().await,
        };
        // PostgreSQL reports a refused COMMIT before it releases the locks of its transaction, and sqlx does not wait.
        conn.ping().await?;
        Ok(ended?)
    }
}

impl OwnTransactions for TokioPostgres {
    async fn in_own_transaction(
        url: &str,
        isolation: Isolation,
        once: &Once<Self>,
        step: &Value,
        found: &mut Found,
    ) -> Result<()> {
        let (mut client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let level = match isolation {
            Isolation::RepeatableRead => IsolationLevel::RepeatableRead,
            Isolation::Serializable => IsolationLevel::Serializable,
            _ => IsolationLevel::ReadCommitted,
        };
        let mut tx = client
            .build_transaction()
            .isolation_level(level)
            .start()
            .await?;
        let ended = match act(once, &mut tx, step, found).await? {
            End::Commit => tx.commit().await,
            End::Rollback => tx.rollback().await,
        };
        // As above.
        client.simple_query("").await?;
        Ok(ended?)
    }
}

/// A transaction, and how its statements are sent.
trait Executes: InTransaction {
    async fn exec(raw: &mut Self::Raw, sql: &str) -> Result<()>;
}

impl Executes for sqlx::Transaction<'_, Postgres> {
    async fn exec(raw: &mut PgConnection, sql: &str) -> Result<()> {
        Sqlx::exec(raw, sql).await
    }
}

impl<'t> Executes for tokio_postgres::Transaction<'t> {
    async fn exec(raw: &mut tokio_postgres::Transaction<'t>, sql: &str) -> Result<()> {
        Ok(raw.batch_execute(sql).await?)
    }
}

enum End {
    Commit,
    Rollback,
}

async fn act<D: TestDriver, T: Executes>(
    once: &Once<D>,
    tx: &mut T,
    step: &Value,
    found: &mut Found,
) -> Result<End> {
    if text(step, "do") == "join" {
        join(once, tx, step, found).await?;
        return Ok(End::Commit);
    }
    found.insert("outcome".into(), "settled".into());
    match text(step, "do") {
        "accept" => {
            let tenant = step["tenant"].as_str().unwrap_or_default();
            let message = Message::new(text(step, "id"), text(step, "payload")).tenant(tenant);
            let (consumer, source) = (text(step, "consumer"), text(step, "source"));
            let new = once.accept(&mut *tx, consumer, source, &message).await?;
            for statement in list(&step["sql"]).iter().filter(|_| new) {
                T::exec(tx.raw(), statement.as_str().unwrap()).await?;
            }
            found.insert("new".into(), new.into());
        }
        "accept_batch" => {
            let messages: Vec<_> = list(&step["messages"])
                .iter()
                .map(|pair| Message::new(pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
                .collect();
            let (consumer, source) = (text(step, "consumer"), text(step, "source"));
            let new = once
                .accept_batch(tx, consumer, source, &messages, "")
                .await?;
            found.insert("new".into(), new.into());
        }
        _ => drop(once.publish(tx, event(step)?).await?),
    }
    Ok(match step["rollback"] == true {
        true => End::Rollback,
        false => End::Commit,
    })
}

/// A claim in it. The caller ignores an error of the work, and returns early: it is committed in any case.
async fn join<D: TestDriver, T: Executes>(
    once: &Once<D>,
    tx: &mut T,
    step: &Value,
    found: &mut Found,
) -> Result<()> {
    found.insert("outcome".into(), "joined".into());
    match once.join(&mut *tx, &intent(step)?).await? {
        Claim::Run(mut joined) => {
            for statement in list(&step["sql"]) {
                T::exec(joined.conn(), statement.as_str().unwrap()).await?;
            }
            if text(step, "end") == "succeed" {
                note_done(&joined.succeed(ack(step)?).await?.0, found);
            }
        }
        other => not_held(other, found)?,
    }
    Ok(())
}
