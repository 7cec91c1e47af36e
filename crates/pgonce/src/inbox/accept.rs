//! Accepting messages, in whatever transaction applies them.

use super::literal;
use super::message::Message;
use crate::call::{Args, Sql};
use crate::driver::{Connection, Driver, InTransaction};
use crate::error::Result;
use crate::once::Once;
use crate::trace::{database_span, link, set_parent, step};
use crate::tx::Tx;

static ACCEPT: Sql = Sql::kept("select pgonce.accept($1, $2, $3, $4, $5)::text");
static ACCEPT_BATCH: Sql =
    Sql::kept("select pgonce.accept_batch($1, $2, $3::text::text[], $4::text::bytea[], $5)");
/// The same on Citus, which would not send a call with these casts to the server of the tenant.
static ACCEPT_TEXTS: Sql = Sql::kept("select a from pgonce._accept_texts($1, $2, $3, $4, $5) a");

impl<C: Connection> Tx<C> {
    /// Asks whether this consumer may apply this message: true where it is new. The marker and what
    /// else is done in the transaction commit together, or neither does.
    ///
    /// The message's own tenant counts; one without gets the transaction's.
    ///
    /// [`Error::Conflict`](crate::Error::Conflict) with code `P4050`: the id came before with another
    /// payload.
    pub async fn accept(
        &mut self,
        consumer: &str,
        source: &str,
        message: &Message,
    ) -> Result<bool> {
        let own = self.shared_tenant().unwrap_or_default();
        let tenant = match message.tenant.is_empty() {
            true => &*own,
            false => &message.tenant,
        };
        let hash = message.hash();
        let args = Args::texts([consumer, source, &message.id])
            .bytes(&hash)
            .text(tenant);
        let span = database_span!(
            "pgonce.accept",
            messaging.consumer.group.name = consumer,
            messaging.destination.name = source
        );
        let header = |name: &str| message.headers.get(name).and_then(|value| value.as_str());
        let (parent, state) = (header("traceparent"), header("tracestate"));
        // A caller in a span has the message's trace, or one of its own; else this one goes on with the message's.
        match tracing::Span::current().is_none() {
            true => set_parent(&span, parent, state),
            false => link(&span, parent, state),
        }
        let accepting = async { self.call(&ACCEPT, args).await?.one()?.bool() };
        let outcome = |new: &bool| if *new { "new" } else { "duplicate" };
        step(span, accepting, outcome).await
    }

    /// As [`Tx::accept`], for many messages of the transaction's tenant in one statement. Returns the ids
    /// that are new, each once.
    pub async fn accept_batch(
        &mut self,
        consumer: &str,
        source: &str,
        messages: &[Message],
    ) -> Result<Vec<String>> {
        let tenant = self.shared_tenant().unwrap_or_default();
        let ids = literal::texts(messages.iter().map(|m| m.id.as_str()));
        let hashes = literal::digests(messages.iter().map(Message::hash));
        let args = Args::texts([consumer, source, &ids, &hashes, &tenant]);
        let sql = match self.is_distributed() {
            true => &ACCEPT_TEXTS,
            false => &ACCEPT_BATCH,
        };
        let span = database_span!(
            "pgonce.accept",
            messaging.consumer.group.name = consumer,
            messaging.destination.name = source,
            messaging.batch.message_count = messages.len() as i64
        );
        let accepting = self.call(sql, args);
        let rows = step(span, accepting, |_| "asked").await?;
        rows.read(|mut row| row.text())
    }
}

impl<D: Driver> Once<D> {
    /// Asks, in a transaction that you opened, whether this consumer may apply this message: true where it
    /// is new. The marker and your effect commit together, or neither does.
    ///
    /// [`Error::Conflict`](crate::Error::Conflict) with code `P4050`: the id came before with another payload.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(pool: sqlx::PgPool, once: pgonce::sqlx::Once) -> Result<(), pgonce::Error> {
    /// use pgonce::inbox::Message;
    ///
    /// let message = Message::new("evt-7", r#"{"order": 7}"#);
    /// let mut tx = pool.begin().await?;
    /// if once.accept(&mut tx, "billing", "shop", &message).await? {
    ///     sqlx::query("insert into invoice (order_id) values (7)").execute(&mut *tx).await?;
    /// }
    /// tx.commit().await?; // then, and only then, acknowledge it to the broker
    /// # Ok(())
    /// # }
    /// ```
    pub async fn accept<T: InTransaction>(
        &self,
        tx: &mut T,
        consumer: &str,
        source: &str,
        message: &Message,
    ) -> Result<bool> {
        let mut tx = self.tx_on(tx, None);
        tx.accept(consumer, source, message).await
    }

    /// As [`Once::accept`], for many messages of one tenant in one statement. Returns the ids that are
    /// new, each once.
    pub async fn accept_batch<T: InTransaction>(
        &self,
        tx: &mut T,
        consumer: &str,
        source: &str,
        messages: &[Message],
        tenant: &str,
    ) -> Result<Vec<String>> {
        let tenant = (!tenant.is_empty()).then(|| tenant.into());
        let mut tx = self.tx_on(tx, tenant);
        tx.accept_batch(consumer, source, messages).await
    }
}
