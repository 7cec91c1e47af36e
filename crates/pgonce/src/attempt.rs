//! An attempt that lives in one transaction: claim, effect and acknowledgement commit together.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::ack::{Ack, Done, Failure};
use crate::claim::ClaimKind;
use crate::driver::{Driver, Param, Session, Settled};
use crate::lately::Lately;
use crate::lease::interval;
use crate::statements::Statements;
use crate::success::Success;
use crate::{Error, Intent, Result};

/// Where an attempt that is dropped leaves its connection, so that [`crate::Once::run`] can roll
/// it back and keep it.
pub(crate) type Home<S> = Arc<Mutex<Option<S>>>;

/// The right to do the work, in an open transaction.
///
/// Do your writes on [`Attempt::conn`], then [`Attempt::succeed`]: the acknowledgement and your
/// writes commit together. Dropped, or cancelled at any point, it leaves nothing.
#[must_use = "an attempt that is dropped is rolled back; end it with succeed or fail"]
pub struct Attempt<D: Driver> {
    pub(crate) session: Option<D::Session>,
    pub(crate) home: Option<Home<D::Session>>,
    pub(crate) statements: Arc<Statements>,
    pub(crate) retentions: Arc<Lately<Arc<str>>>,
    pub(crate) intent: Intent,
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) kind: ClaimKind,
    pub(crate) fence: i64,
    pub(crate) attempts: u32,
}

impl<D: Driver> Attempt<D> {
    /// The driver's connection, inside the transaction: `&mut PgConnection` of sqlx, where a nested
    /// `begin` becomes a savepoint, or the client of tokio-postgres.
    ///
    /// Do not send COMMIT or ROLLBACK by hand: it would part the effect from its acknowledgement.
    pub fn conn(&mut self) -> &mut <D::Session as Session>::Raw {
        self.session().raw()
    }

    /// Takes a named lock until the end of the transaction, for what no row stands for.
    /// Answers whether it was free.
    pub async fn try_lock(&mut self, name: &str) -> Result<bool> {
        let (statements, tenant) = (
            self.statements.clone(),
            self.intent.tenant_name().to_owned(),
        );
        crate::lock::try_lock(self.session(), &statements, name, &tenant).await
    }

    /// Waits for a named lock, at most so long. Answers whether it was got.
    pub async fn lock(&mut self, name: &str, at_most: Duration) -> Result<bool> {
        let (statements, tenant) = (
            self.statements.clone(),
            self.intent.tenant_name().to_owned(),
        );
        crate::lock::lock(self.session(), &statements, name, at_most, &tenant).await
    }

    /// Records the acknowledgement and commits it with everything done on [`Attempt::conn`].
    ///
    /// [`Error::LostRace`] and [`Error::Fenced`] mean that another attempt was faster and nothing
    /// of this one is left. [`Error::Uncertain`] means that the reply was lost: claim again.
    /// [`crate::Once::run`] does both for you.
    pub async fn succeed(mut self, ack: Ack) -> Result<Done> {
        let statements = self.statements.clone();
        let intent = self.intent.clone();
        let owner = self.owner.clone();
        let success = Success::new(&intent, &ack, self.fence, owner.as_deref());
        fault_point!("succeed.before_settle");
        // From here the session leaves its home: a cancelled commit must not be rolled back into
        // a pool, it is closed.
        let mut session = self
            .session
            .take()
            .expect("only succeed, fail and drop take it");
        self.home = None;
        let fresh = self.fence == 1 && ack.keep.is_none();
        let (tenant, scope) = (intent.tenant_name(), intent.scope());
        let settled = if !fresh {
            let succeed = &statements.succeed;
            session.settle(succeed, &success.params()).await
        } else if let Some(retention) = self.retentions.get(tenant, scope) {
            let insert = &statements.insert_kept;
            session.settle(insert, &success.kept_row(&retention)).await
        } else {
            let insert = &statements.insert_success;
            session.settle(insert, &success.row()).await
        };
        match settled {
            Settled::Committed(told) => {
                fault_point!("succeed.settled");
                if fresh && let Some([Some(retention)]) = told.as_deref() {
                    self.retentions
                        .put(tenant, scope, retention.as_str().into());
                }
                session.keep();
                Ok(Done {
                    ack,
                    replayed: false,
                    attempts: self.attempts,
                    fence: self.fence,
                })
            }
            Settled::Refused(error) => {
                if !matches!(error, Error::Disconnected(_)) {
                    session.keep();
                }
                Err(error)
            }
            Settled::Unknown(why) => Err(Error::Uncertain(why)),
        }
    }

    /// Rolls the work back and records the failure, under the same fence, in a short transaction
    /// of its own: the one that failed would take the record with it.
    pub async fn fail(mut self, failure: Failure) -> Result<()> {
        let mut session = self
            .session
            .take()
            .expect("only succeed, fail and drop take it");
        self.home = None;
        session.rollback().await?;
        let recorded = record_failure(
            &mut session,
            &self.statements,
            &self.intent,
            self.fence,
            self.owner.as_deref(),
            &failure,
        )
        .await;
        crate::lease::keep_unless_lost(session, &recorded);
        recorded
    }

    /// Rolls back; nothing is left and nothing is recorded.
    pub async fn abandon(mut self) -> Result<()> {
        let mut session = self
            .session
            .take()
            .expect("only succeed, fail and drop take it");
        self.home = None;
        session.rollback().await?;
        session.keep();
        Ok(())
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

    pub(crate) fn session(&mut self) -> &mut D::Session {
        self.session
            .as_mut()
            .expect("only succeed, fail and drop take it")
    }
}

/// Outside a transaction a statement commits itself: when its reply is lost, nobody knows.
pub(crate) fn uncertain_if_lost(error: Error) -> Error {
    match error {
        Error::Disconnected(why) => Error::Uncertain(why),
        other => other,
    }
}

/// Records a failure under its fence.
pub(crate) async fn record_failure<S: Session>(
    session: &mut S,
    statements: &Statements,
    intent: &Intent,
    fence: i64,
    owner: Option<&str>,
    failure: &Failure,
) -> Result<()> {
    let answer = failure.answer().map(ToString::to_string);
    let keep = failure.keep.map(interval);
    fault_point!("fail.before_record");
    session
        .query(
            &statements.fail,
            &[
                Param::Text(Some(intent.scope())),
                Param::Text(Some(intent.key())),
                Param::Bytes(intent.fingerprint().as_bytes()),
                Param::Text(Some(&fence.to_string())),
                Param::Text(Some(if failure.is_retryable() {
                    "true"
                } else {
                    "false"
                })),
                Param::Text(Some(failure.code())),
                Param::Text(Some(failure.message())),
                Param::Json(answer.as_deref()),
                Param::Text(Some(intent.tenant_name())),
                Param::Text(intent.correlation_id()),
                Param::Text(owner),
                Param::Text(keep.as_deref()),
            ],
        )
        .await
        .map_err(uncertain_if_lost)?;
    fault_point!("fail.recorded");
    Ok(())
}

impl<D: Driver> Drop for Attempt<D> {
    fn drop(&mut self) {
        if let (Some(session), Some(home)) = (self.session.take(), &self.home)
            && let Ok(mut slot) = home.lock()
        {
            *slot = Some(session);
        }
    }
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
