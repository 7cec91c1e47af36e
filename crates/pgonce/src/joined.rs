//! A claim inside a transaction that you already hold.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::ack::{Done, IntoAck};
use crate::claim::{Claim, ClaimKind, Outcome};
use crate::driver::{Driver, InTransaction};
use crate::error::Result;
use crate::intent::Intent;
use crate::loan::Loan;
use crate::once::{CLAIM, CLAIM_FAST, Once, claim_args, fast_args};
use crate::record::{SUCCEED, Success};
use crate::seal::AnswerKeys;
use crate::trace;
use crate::tx::Tx;

/// The right to do the work, in your own transaction, which it derefs to as a [`Tx`].
///
/// [`Joined::succeed`] records the acknowledgement; it becomes true when you commit. Commit right
/// after it, and check your driver's error: if the reply is lost, claim again.
#[must_use = "nothing is recorded until succeed is called and the transaction committed"]
pub struct Joined<T: InTransaction> {
    tx: Tx<T>,
    keys: Option<Arc<AnswerKeys>>,
    owner: Option<Arc<str>>,
    intent: Intent,
    kind: ClaimKind,
    fence: i64,
    attempts: u32,
}

impl<D: Driver> Once<D> {
    /// Claims inside a transaction that you opened: sqlx's, tokio-postgres' or deadpool's
    /// `Transaction`, given by value or as `&mut`.
    ///
    /// By value, the transaction comes back from [`Joined::succeed`] only, so that work whose success
    /// was forgotten cannot be committed; where the work is not yours it is dropped, which rolls it
    /// back. By `&mut` it stays yours in any case, with what else you did in it.
    ///
    /// As with every error in a transaction, after an `Err` yours must be rolled back.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(pool: sqlx::PgPool, once: pgonce::sqlx::Once, intent: pgonce::Intent)
    /// # -> Result<(), pgonce::Error> {
    /// use pgonce::Claim;
    ///
    /// let tx = pool.begin().await?;
    /// if let Claim::Run(mut joined) = once.join(tx, &intent).await? {
    ///     sqlx::query("insert into orders (item) values ('book')").execute(joined.conn()).await?;
    ///     let (_done, tx) = joined.succeed(&"ordered").await?;
    ///     tx.commit().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn join<T: InTransaction>(&self, tx: T, intent: &Intent) -> Result<Claim<Joined<T>>> {
        let claimed = trace::claim(intent, self.claim_in(tx, intent)).await;
        self.count_suppressed(intent, &claimed);
        claimed
    }

    async fn claim_in<T: InTransaction>(&self, tx: T, intent: &Intent) -> Result<Claim<Joined<T>>> {
        let mut tx = self.tx_on(tx, intent.shared_tenant());
        let fast = tx.call(&CLAIM_FAST, fast_args(intent)).await?;
        let mut outcome = Outcome::read_full(fast.first())?;
        if matches!(outcome, Outcome::Ask) {
            let full = tx
                .call(&CLAIM, claim_args(intent, None, self.owner()))
                .await?;
            outcome = Outcome::read_full(full.first())?;
        }
        Ok(match outcome.opened(self.keys(), intent)? {
            Outcome::Run {
                kind,
                fence,
                attempts,
            } => Claim::Run(Joined {
                tx,
                keys: self.shared.keys.clone(),
                owner: self.shared.owner.clone(),
                intent: intent.clone(),
                kind,
                fence,
                attempts,
            }),
            other => other.finished(),
        })
    }

    /// A transaction of the user's, with what pgonce does in it.
    pub(crate) fn tx_on<T: InTransaction>(&self, tx: T, tenant: Option<Arc<str>>) -> Tx<T> {
        Tx::new(Loan::owned(tx), self.caller().schema.clone(), tenant)
    }
}

impl<T: InTransaction> Joined<T> {
    /// Records the acknowledgement in your transaction, and gives that back: nothing is true before
    /// you commit. `ack` is an [`Ack`](crate::Ack), or a reference to the answer.
    pub async fn succeed<A: IntoAck>(mut self, ack: A) -> Result<(Done<A::Answer>, T)> {
        let ack = ack.into_ack()?.kept(self.fence)?;
        let keys = self.keys.as_deref();
        let success = Success::new(&self.intent, &ack, self.owner.as_deref(), keys)?;
        self.tx.call(&SUCCEED, success.args(self.fence)).await?;
        let done = Done::new(ack, false, self.attempts, self.fence);
        Ok((done, self.tx.into_parts().0))
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

impl<T: InTransaction> Deref for Joined<T> {
    type Target = Tx<T>;

    fn deref(&self) -> &Tx<T> {
        &self.tx
    }
}

impl<T: InTransaction> DerefMut for Joined<T> {
    fn deref_mut(&mut self) -> &mut Tx<T> {
        &mut self.tx
    }
}

impl<T: InTransaction> fmt::Debug for Joined<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined")
            .field("scope", &self.intent.scope())
            .field("kind", &self.kind)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}
