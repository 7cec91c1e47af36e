//! Publishing, in whatever transaction makes the effect.

use std::borrow::Borrow;
use std::time::UNIX_EPOCH;

use tracing::field::Empty;
use uuid::Uuid;

use super::event::Event;
use crate::call::{Args, Sql};
use crate::driver::{Connection, Driver, InTransaction};
use crate::error::Result;
use crate::once::Once;
use crate::trace::step;
use crate::tx::Tx;

/// What `pgonce.publish` does, without its PL/pgSQL: that would cost more than the insert. The event
/// is checked before, but for what only the database knows: how long its JSON is as readers get it. The usual one has no id
/// and no time of its own.
static PUBLISH: Sql = Sql::kept(
    "insert into pgonce.outbox select * from pgonce._event_row($1, $2, $3, $4, null, $5, null, $6, \
     pgonce._event_size($1, $2, $3, $4, $5, $6)) returning message_id",
);
static PUBLISH_AS: Sql = Sql::kept(
    "insert into pgonce.outbox select * from pgonce._event_row($1, $2, $3, $4, $7::text::uuid, $5, \
     pg_catalog.to_timestamp($8::text::double precision), $6, \
     pgonce._event_size($1, $2, $3, $4, $5, $6)) returning message_id",
);

/// On Citus: the wrapper sends it to the tenant's server, however its arguments are cast.
static PUBLISH_BY_TENANT: Sql = Sql::kept(
    "select pgonce.publish($1, $2, $3, $4, $7::text::uuid, $5, pg_catalog.to_timestamp($8::text::double precision), $6)::text",
);

impl<C: Connection> Tx<C> {
    /// Publishes an event that exists if and only if the transaction commits, under the transaction's
    /// tenant unless the event names one. Returns its message id, which is the same for every recorded attempt
    /// at an intent. With the feature `otel` it carries the trace on, unless it has a `traceparent` of its own.
    pub async fn publish(&mut self, event: impl Borrow<Event> + Send) -> Result<Uuid> {
        let event = event.borrow();
        let span = tracing::info_span!(
            "pgonce.publish",
            otel.name = %format_args!("publish {}", event.topic),
            otel.kind = "producer",
            messaging.system = "pgonce",
            "messaging.operation.type" = "create",
            messaging.destination.name = event.topic,
            pgonce.event_type = event.kind,
            pgonce.outcome = Empty,
            "error.type" = Empty,
            otel.status_code = Empty,
        );
        let headers = event.headers_in(&span)?;
        step(span, self.insert_event(event, &headers), |_| "published").await
    }

    async fn insert_event(&mut self, event: &Event, headers: &str) -> Result<Uuid> {
        let own = self.shared_tenant().unwrap_or_default();
        let tenant = event.tenant.as_deref().unwrap_or(&own);
        event.check(tenant, headers)?;
        let args = Args::new()
            .text(&*event.topic)
            .text(&*event.kind)
            .text(event.subject.as_deref())
            .json(event.payload.as_deref())
            .json(headers)
            .text(tenant);
        let plain = event.message_id.is_none() && event.deliver_at.is_none();
        let rows = if plain && !self.is_distributed() {
            self.call(&PUBLISH, args).await?
        } else {
            let id = event.message_id.map(|id| id.to_string());
            let deliver_at = event.deliver_at.map(|time| {
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                format!("{}.{:06}", since.as_secs(), since.subsec_micros())
            });
            let args = args.text(id.as_deref()).text(deliver_at.as_deref());
            let sql = match self.is_distributed() {
                true => &PUBLISH_BY_TENANT,
                false => &PUBLISH_AS,
            };
            self.call(sql, args).await?
        };
        rows.one()?.get()
    }
}

impl<D: Driver> Once<D> {
    /// Publishes an event in a transaction that you opened: it exists if and only if that commits.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(pool: sqlx::PgPool, once: pgonce::sqlx::Once) -> Result<(), pgonce::Error> {
    /// use pgonce::Event;
    ///
    /// let mut tx = pool.begin().await?;
    /// sqlx::query("update prices set amount = 7 where item = 'book'").execute(&mut *tx).await?;
    /// let event = Event::new("prices", "price.changed").subject("book");
    /// let id = once.publish(&mut tx, event).await?;
    /// tx.commit().await?;
    /// # let _ = id;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn publish<T: InTransaction>(
        &self,
        tx: &mut T,
        event: impl Borrow<Event> + Send,
    ) -> Result<Uuid> {
        self.tx_on(tx, None).publish(event).await
    }
}
