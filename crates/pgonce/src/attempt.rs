//! An attempt that lives in one transaction: claim, effect and acknowledgement commit together.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::ack::{Ack, Done, IntoAck};
use crate::call::{
    BEGIN, COMMIT, Schema, call_on, commit_with, in_transaction_on, release_unless_lost, roll_back,
    uncertain_if_lost,
};
use crate::claim::ClaimKind;
use crate::driver::{Driver, Session};
use crate::error::{Error, ErrorDetail, Result};
use crate::failure::Failure;
use crate::intent::Intent;
use crate::record::{
    FAIL, INSERT_KEPT, INSERT_SUCCESS, SUCCEED, Success, failure_args, leave_out, refuses_values,
};
use crate::seal::{self, AnswerKeys};
use crate::trace::{database_span, step};
use crate::ttl_cache::TtlCache;
use crate::tx::Tx;

/// The right to do the work, in an open transaction, which it derefs to.
///
/// Do your writes on [`Tx::conn`], then call [`Attempt::succeed`]: the acknowledgement and your
/// writes commit together. Dropped, or cancelled at any point, it leaves nothing.
#[must_use = "an attempt that is dropped is rolled back; end it with succeed or fail"]
pub struct Attempt<D: Driver> {
    pub(crate) tx: Tx<D::Session>,
    pub(crate) retentions: Arc<TtlCache<Arc<str>>>,
    pub(crate) keys: Option<Arc<AnswerKeys>>,
    pub(crate) intent: Intent,
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) kind: ClaimKind,
    pub(crate) fence: i64,
    pub(crate) attempts: u32,
    /// The code that an earlier try to record this leased work was refused with for its answer.
    pub(crate) refused: Option<String>,
}

impl<D: Driver> Attempt<D> {
    /// Records the acknowledgement and commits it with everything done in the transaction. `ack` is
    /// an [`Ack`](crate::Ack), or a reference to the answer.
    ///
    /// [`Error::LostRace`](crate::Error::LostRace) and [`Error::Fenced`](crate::Error::Fenced) mean
    /// that another attempt was faster and nothing of this one is left.
    /// [`Error::Uncertain`](crate::Error::Uncertain) means that the reply was lost: claim again.
    /// [`Once::run`](crate::Once::run) does both for you.
    pub async fn succeed<A: IntoAck>(self, ack: A) -> Result<Done<A::Answer>> {
        let mut ack = Ack::of(ack, self.fence)?;
        let Self {
            tx,
            retentions,
            keys,
            intent,
            owner,
            fence,
            attempts,
            refused,
            ..
        } = self;
        if let Some(code) = &refused {
            ack.leave_out(code);
        }
        // Of a lease: what is done is recorded.
        if fence % 2 == 0
            && let Err(error) = seal::stored(keys.as_deref(), &intent, ack.value.as_ref())
        {
            ack.leave_out(error.code());
        }
        let success = Success::new(&intent, &ack, owner.as_deref(), keys.as_deref())?;
        fault_point!("succeed.before_settle");
        // From here the session does not go back to its lender: one whose commit was cancelled must
        // not be rolled back into a pool, it is closed.
        let (session, schema) = tx.into_parts();
        let fresh = fence == 1 && ack.keep.is_none() && !schema.is_distributed();
        let (tenant, scope) = (intent.tenant_name(), intent.scope());
        let known = match fresh && success.is_small() {
            true => retentions.get(tenant, scope),
            false => None,
        };
        let (sql, args) = match (fresh, known.as_deref()) {
            (false, _) => (&SUCCEED, success.args(fence)),
            (true, known @ Some(_)) => (&INSERT_KEPT, success.row(known)),
            (true, None) => (&INSERT_SUCCESS, success.row(None)),
        };
        let committing = commit_with(session, &schema, sql, args);
        let row = step(database_span!("pgonce.commit"), committing, |_| "committed").await?;
        fault_point!("succeed.settled");
        if fresh
            && known.is_none()
            && let Some(retention) = row.and_then(|mut row| row.opt_text())
        {
            retentions.put(tenant, scope, retention.into());
        }
        Ok(Done::new(ack, false, attempts, fence))
    }

    /// Rolls the work back and records the failure, under the same fence, in a short transaction
    /// of its own: the one that failed would take the record with it.
    pub async fn fail(self, failure: Failure) -> Result<()> {
        let (mut session, schema) = self.tx.into_parts();
        session.rollback().await?;
        let answer = seal::stored(self.keys.as_deref(), &self.intent, failure.answer())?;
        let held = (&self.intent, self.fence, self.owner.as_deref());
        record_failure(session, &schema, held, &failure, answer).await
    }

    /// Rolls back; nothing is left and nothing is recorded.
    pub async fn abandon(self) -> Result<()> {
        roll_back(self.tx.into_parts().0).await
    }

    /// The intent that is attempted.
    pub fn intent(&self) -> &Intent {
        &self.intent
    }

    /// How the claim came to be yours.
    pub fn kind(&self) -> ClaimKind {
        self.kind
    }

    /// The number that shuts out older attempts.
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// Which attempt at the intent this is.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}

impl<D: Driver> Deref for Attempt<D> {
    type Target = Tx<D::Session>;

    fn deref(&self) -> &Tx<D::Session> {
        &self.tx
    }
}

impl<D: Driver> DerefMut for Attempt<D> {
    fn deref_mut(&mut self) -> &mut Tx<D::Session> {
        &mut self.tx
    }
}

/// The error of work that answered without having ended its attempt.
pub(crate) fn not_ended() -> Error {
    Error::Invalid(ErrorDetail::new(
        "22023",
        "the work answered, but its attempt was never ended",
        "End the attempt with succeed and answer what that returns, not another intent's.",
    ))
}

/// Records a failure under its fence, on a session outside any transaction.
pub(crate) async fn record_failure<S: Session>(
    mut session: S,
    schema: &Schema,
    (intent, fence, owner): (&Intent, i64, Option<&str>),
    failure: &Failure,
    mut answer: Option<String>,
) -> Result<()> {
    let mut failure = Cow::Borrowed(failure);
    fault_point!("fail.before_record");
    let recorded = loop {
        let args = failure_args(intent, fence, owner, &failure, answer.as_deref());
        let failing = call_on(&mut session, schema, &FAIL, &args);
        match step(database_span!("pgonce.fail"), failing, |_| "recorded").await {
            // That it failed is recorded whatever the contract and the database's encoding allow an answer to be.
            Err(error) if refuses_values(&error) && leave_out(&mut answer, &mut failure) => {}
            // The default isolation of the role or database is stricter than this needs, and would turn it away again.
            Err(error) if error.code() == "40001" => {
                let args = failure_args(intent, fence, owner, &failure, answer.as_deref());
                in_transaction_on(session, schema, (BEGIN, &COMMIT, None), &FAIL, args).await?;
                fault_point!("fail.recorded");
                return Ok(());
            }
            recorded => break recorded.map(drop).map_err(uncertain_if_lost),
        }
    };
    release_unless_lost(session, &recorded);
    recorded?;
    fault_point!("fail.recorded");
    Ok(())
}

impl<D: Driver> fmt::Debug for Attempt<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("scope", &self.intent.scope())
            .field("kind", &self.kind)
            .field("fence", &self.fence)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}
