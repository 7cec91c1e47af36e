//! A claim inside a transaction that you already hold.

use std::fmt;
use std::sync::Arc;

use crate::ack::{Ack, Done};
use crate::claim::{Claim, ClaimKind, Outcome};
use crate::driver::{Connection, Driver, Param};
use crate::once::Once;
use crate::statements::Statements;
use crate::success::Success;
use crate::{Intent, Result};

/// The right to do the work, in your own transaction.
///
/// [`Joined::succeed`] records the acknowledgement; it becomes true when you commit. Commit right
/// after it, and check your driver's error: if the reply is lost, claim again.
#[must_use = "nothing is recorded until succeed is called and the transaction committed"]
pub struct Joined<'c, C: Connection> {
    conn: &'c mut C,
    statements: Arc<Statements>,
    owner: Option<Arc<str>>,
    intent: Intent,
    kind: ClaimKind,
    fence: i64,
    attempts: u32,
}

impl<D: Driver> Once<D> {
    /// Claims inside a transaction that you opened, on sqlx's `PgConnection` (`&mut *tx`) or
    /// tokio-postgres' `Transaction`.
    ///
    /// As with every error in a transaction, after an `Err` yours must be rolled back.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(pool: sqlx::PgPool, once: pgonce::Once<pgonce::driver::sqlx::Sqlx>, intent: pgonce::Intent)
    /// # -> Result<(), pgonce::Error> {
    /// use pgonce::{Ack, Claim};
    ///
    /// let mut tx = pool.begin().await?;
    /// if let Claim::Run(mut joined) = once.join(&mut *tx, &intent).await? {
    ///     sqlx::query("insert into orders (item) values ('book')").execute(joined.conn()).await?;
    ///     let _done = joined.succeed(&Ack::status()).await?;
    /// }
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn join<'c, C: Connection>(
        &self,
        conn: &'c mut C,
        intent: &Intent,
    ) -> Result<Claim<Joined<'c, C>>> {
        let names = [
            Param::Text(Some(intent.scope())),
            Param::Text(Some(intent.key())),
            Param::Bytes(intent.fingerprint().as_bytes()),
        ];
        let tenant = Param::Text(Some(intent.tenant_name()));
        let glance = [&names[..], &[tenant]].concat();
        let rows = conn.query(&self.statements().glance, &glance).await?;
        let mut outcome = rows
            .into_iter()
            .next()
            .map_or(Ok(Outcome::Ask), Outcome::read)?;
        if matches!(outcome, Outcome::Ask) {
            let rest = [
                Param::Text(None),
                Param::Text(self.owner()),
                tenant,
                Param::Text(intent.correlation_id()),
            ];
            let rows = conn
                .query(&self.statements().claim, &[&names[..], &rest[..]].concat())
                .await?;
            outcome = rows
                .into_iter()
                .next()
                .map_or(Ok(Outcome::Ask), Outcome::read)?;
        }
        let claimed = Ok(match outcome {
            Outcome::Run {
                kind,
                fence,
                attempts,
            } => Claim::Run(Joined {
                conn,
                statements: self.shared_statements(),
                owner: self.owner().map(Into::into),
                intent: intent.clone(),
                kind,
                fence,
                attempts,
            }),
            other => other.finished(),
        });
        self.count_told(intent, &claimed);
        claimed
    }
}

impl<C: Connection> Joined<'_, C> {
    /// Your connection, for the writes of the work.
    pub fn conn(&mut self) -> &mut C {
        self.conn
    }

    /// Records the acknowledgement in your transaction. Nothing is true before you commit.
    pub async fn succeed(self, ack: &Ack) -> Result<Done> {
        let success = Success::new(&self.intent, ack, self.fence, self.owner.as_deref());
        let succeed = &self.statements.succeed;
        self.conn.query(succeed, &success.params()).await?;
        Ok(Done {
            ack: ack.clone(),
            replayed: false,
            attempts: self.attempts,
            fence: self.fence,
        })
    }

    /// What the other rooms need of it.
    pub(crate) fn parts(&mut self) -> (&mut C, Arc<Statements>, String) {
        let tenant = self.intent.tenant_name().to_owned();
        (self.conn, self.statements.clone(), tenant)
    }

    /// How the claim came to be yours.
    pub fn kind(&self) -> ClaimKind {
        self.kind
    }

    /// The fence of the attempt.
    pub fn fence(&self) -> i64 {
        self.fence
    }
}

impl<C: Connection> fmt::Debug for Joined<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined")
            .field("scope", &self.intent.scope())
            .field("kind", &self.kind)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}
