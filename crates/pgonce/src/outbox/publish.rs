//! Publishing, on whatever connection holds the transaction.

use std::borrow::Cow;
use std::time::UNIX_EPOCH;

use uuid::Uuid;

use super::Event;
use crate::driver::{Connection, Driver, Param};
use crate::error::ErrorDetail;
use crate::statements::Statements;
use crate::{Attempt, Error, Joined, Once, Result};

/// What `pgonce.publish` does, without its PL/pgSQL: that would cost more than the insert.
pub(crate) async fn publish<C: Connection>(
    conn: &mut C,
    statements: &Statements,
    event: &Event,
    tenant: &str,
) -> Result<Uuid> {
    let tenant = event.tenant.as_deref().unwrap_or(tenant);
    let headers = match event.headers.is_empty() {
        true => Cow::Borrowed("{}"),
        false => Cow::Owned(serde_json::to_string(&event.headers)?),
    };
    event.check(tenant, &headers)?;
    let usual = [
        Param::Text(Some(&event.topic)),
        Param::Text(Some(&event.kind)),
        Param::Text(event.subject.as_deref()),
        Param::Json(event.payload.as_deref()),
        Param::Json(Some(&headers)),
        Param::Text(Some(tenant)),
    ];
    let rows = if event.message_id.is_none() && event.deliver_at.is_none() {
        conn.query(&statements.publish, &usual).await?
    } else {
        let id = event.message_id.map(|id| id.to_string());
        let deliver_at = event.deliver_at.map(|time| {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            format!("{}.{:06}", since.as_secs(), since.subsec_micros())
        });
        let [a, b, c, d, e, f] = usual;
        let own = [
            Param::Text(id.as_deref()),
            Param::Text(deliver_at.as_deref()),
        ];
        let [g, h] = own;
        conn.query(&statements.publish_as, &[a, b, c, d, e, f, g, h])
            .await?
    };
    let id = rows.into_iter().flatten().flatten().next();
    id.and_then(|id| id.parse().ok()).ok_or_else(|| {
        Error::Schema(ErrorDetail::new(
            "P4099",
            "the outbox answered no message id",
            "Run `pgonce migrate status`.",
        ))
    })
}

impl<D: Driver> Attempt<D> {
    /// Publishes an event that exists if and only if this attempt succeeds. Answers its message
    /// id, which is the same on every attempt at the intent.
    pub async fn publish(&mut self, event: &Event) -> Result<Uuid> {
        let statements = self.statements.clone();
        let tenant = self.intent.tenant_name().to_owned();
        publish(self.session(), &statements, event, &tenant).await
    }
}

impl<C: Connection> Joined<'_, C> {
    /// Publishes an event that exists if and only if your transaction commits. Answers its message
    /// id, which is the same on every attempt at the intent.
    pub async fn publish(&mut self, event: &Event) -> Result<Uuid> {
        let (conn, statements, tenant) = self.parts();
        publish(conn, &statements, event, &tenant).await
    }
}

impl<D: Driver> Once<D> {
    /// Publishes an event in a transaction that you opened: it exists if and only if that commits.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(pool: sqlx::PgPool, once: pgonce::Once<pgonce::driver::sqlx::Sqlx>)
    /// # -> Result<(), pgonce::Error> {
    /// use pgonce::outbox::Event;
    ///
    /// let mut tx = pool.begin().await?;
    /// sqlx::query("update prices set amount = 7 where item = 'book'").execute(&mut *tx).await?;
    /// let event = Event::new("prices", "price.changed").subject("book");
    /// let id = once.publish(&mut *tx, &event).await?;
    /// tx.commit().await?;
    /// # let _ = id;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn publish<C: Connection>(&self, conn: &mut C, event: &Event) -> Result<Uuid> {
        publish(conn, self.statements(), event, "").await
    }
}
