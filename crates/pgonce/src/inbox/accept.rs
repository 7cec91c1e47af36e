//! Accepting, on whatever connection holds the transaction.

use super::message::Message;
use super::{first, literal, unreadable};
use crate::driver::{Connection, Driver, Param};
use crate::{Once, Result};

impl<D: Driver> Once<D> {
    /// Asks, in a transaction that you opened, whether this consumer may apply this message: true where it
    /// is new. The marker and your effect commit together, or neither does.
    ///
    /// [`Error::Conflict`](crate::Error::Conflict) with code `P4050`: the id came before with another payload.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(pool: sqlx::PgPool, once: pgonce::Once<pgonce::driver::sqlx::Sqlx>)
    /// # -> Result<(), pgonce::Error> {
    /// use pgonce::inbox::Message;
    ///
    /// let message = Message::new("evt-7", r#"{"order": 7}"#);
    /// let mut tx = pool.begin().await?;
    /// if once.accept(&mut *tx, "billing", "shop", &message).await? {
    ///     sqlx::query("insert into invoice (order_id) values (7)").execute(&mut *tx).await?;
    /// }
    /// tx.commit().await?; // then, and only then, acknowledge it to the broker
    /// # Ok(())
    /// # }
    /// ```
    pub async fn accept<C: Connection>(
        &self,
        conn: &mut C,
        consumer: &str,
        source: &str,
        message: &Message,
    ) -> Result<bool> {
        let params = [
            Param::Text(Some(consumer)),
            Param::Text(Some(source)),
            Param::Text(Some(&message.id)),
            Param::Bytes(&message.hash()),
            Param::Text(Some(&message.tenant)),
        ];
        let rows = conn.query(&self.statements().accept, &params).await?;
        Ok(first(rows).ok_or_else(unreadable)? == "true")
    }

    /// As [`Once::accept`], for many messages of one tenant in one statement. Answers the ids that are new, each once.
    pub async fn accept_batch<C: Connection>(
        &self,
        conn: &mut C,
        consumer: &str,
        source: &str,
        messages: &[Message],
        tenant: &str,
    ) -> Result<Vec<String>> {
        let ids = literal::texts(messages.iter().map(|m| m.id.as_str()));
        let hashes = literal::digests(messages.iter().map(Message::hash));
        let params = [consumer, source, &ids, &hashes, tenant].map(|text| Param::Text(Some(text)));
        let rows = conn.query(&self.statements().accept_batch, &params).await?;
        let ids = rows.into_iter().map(|row| row.into_iter().next().flatten());
        ids.map(|id| id.ok_or_else(unreadable)).collect()
    }
}
