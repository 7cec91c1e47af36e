//! One attempt at an intent, on any of the paths, and its outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use pgonce::driver::{Connection as _, Param, Session as _, Statement};
use pgonce::external::Step;
use pgonce::outbox::Event;
use pgonce::{Ack, Claim, ClaimKind, Done, Error, Failure, Intent, Isolation, Lease, Once};
use pgonce_testkit::{History, Outcome};
use serde_json::{Value, json};

use super::business;
use super::driver_ext::{DriverExt, Mark, finished};
use super::outside::{self, Bank};
use super::path::Path;

/// Who makes an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The one whose wire is cut.
    First,
    /// The one who comes while the first one's message is held.
    Second,
    /// A client that tries again without faults.
    Again,
}

/// What all attempts of a trial share.
#[derive(Debug)]
pub(super) struct Case<D: DriverExt> {
    pub(super) path: Path,
    pub(super) key: String,
    pub(super) payload: Value,
    pub(super) isolation: Isolation,
    /// Straight to the server, past proxy and pooler.
    pub(super) calm: Once<D>,
    pub(super) history: Arc<History>,
    /// The work is parted from its claim on purpose, to see whether that is noticed.
    pub(super) sabotage: bool,
    /// The first client does nothing any more.
    pub(super) first_is_over: AtomicBool,
    pub(super) lease: Duration,
}

impl<D: DriverExt> Case<D> {
    /// Makes an attempt with its payload.
    pub(super) async fn attempt(&self, once: &Once<D>, role: Role) -> Outcome {
        self.attempt_with(once, role, &self.payload).await
    }

    /// Makes an attempt, and writes down that it was made and its outcome.
    pub(super) async fn attempt_with(
        &self,
        once: &Once<D>,
        role: Role,
        payload: &Value,
    ) -> Outcome {
        let number = self.history.invoke(&*self.key, payload.clone());
        let done = self.try_once(once, role, number, payload).await;
        let outcome = self.outcome(done);
        self.history.outcome(number, outcome.clone());
        outcome
    }

    pub(super) fn intent(&self, payload: &Value) -> pgonce::Result<Intent> {
        Intent::new(self.path.scope(), &*self.key, payload)
    }

    pub(super) fn mark(&self, number: u64, payload: &Value) -> Mark {
        Mark {
            intent: self.key.clone(),
            attempt: i64::try_from(number).unwrap_or(i64::MAX),
            payload: payload.to_string(),
        }
    }

    async fn try_once(
        &self,
        once: &Once<D>,
        role: Role,
        number: u64,
        payload: &Value,
    ) -> pgonce::Result<Done> {
        let mark = self.mark(number, payload);
        let mut intent = self.intent(payload)?;
        if self.sabotage {
            self.part_effect_from_claim(&mark).await?;
        }
        match self.path {
            Path::ReplayAnswer if role == Role::First => match once.answer(&intent).await? {
                Some(done) => Ok(done),
                None => self.run(once, &intent, mark, None).await,
            },
            Path::AtomicOptimistic if role != Role::Again => {
                intent = intent.known_first();
                self.run(once, &intent, mark, None).await
            }
            Path::OneStatement | Path::StatementFirst if !self.sabotage => {
                if self.path == Path::StatementFirst && role != Role::Again {
                    intent = intent.known_first();
                }
                D::execute(once, &intent, &mark).await
            }
            Path::TransitionTimer => {
                let done = self.run(once, &intent, mark, None).await?;
                // However it ends: what is due is fired by another.
                let fired = once.fire_timers(100).await.unwrap_or_default();
                self.history.saw_times("timer fired", fired);
                Ok(done)
            }
            Path::AtomicRefuse => self.run(once, &intent, mark, Some(refusal())).await,
            Path::AtomicFail if role == Role::First => {
                self.run(once, &intent, mark, Some(transient())).await
            }
            Path::Joined => {
                let ack = acknowledgement(mark.attempt)?;
                D::join(once, self.isolation, &intent, &mark, ack).await
            }
            Path::LeaseRun => {
                let mark = &mark;
                once.run_leased(&intent, |mut lease| async move {
                    let by = lease.renew_while(self.call_outside(mark)).await??;
                    lease.succeed(acknowledgement(by)?).await
                })
                .await
            }
            Path::ExternalKeyed | Path::ExternalLookUp | Path::ExternalReconcile => {
                // Where a reconciler is to find it, the first answer is lost.
                let loses = self.path == Path::ExternalReconcile && role == Role::First;
                let bank = &Bank::new(self, &mark, loses);
                once.run_leased(&intent, |mut lease| async move {
                    self.saw(lease.kind());
                    let step = Step::new("charge").decides_command();
                    let reply = lease.external().call(step, bank, payload).await?;
                    let by = reply.json::<Value>()?["by"].as_i64();
                    let by = by.ok_or_else(|| Error::work("the provider gave no receipt"))?;
                    lease.succeed(acknowledgement(by)?).await
                })
                .await
            }
            Path::Recovery => {
                outside::recover(self).await?;
                match once.lease(&intent, self.lease).await? {
                    Claim::Run(lease) => self.leased(lease, role, &mark).await,
                    other => finished(other),
                }
            }
            Path::LeaseSucceed
            | Path::LeaseHeartbeat
            | Path::LeaseBegin
            | Path::LeaseTakeover
            | Path::LeaseFail
            | Path::LeaseRelease
            | Path::LeaseRefuse => match once.lease(&intent, self.lease).await? {
                Claim::Run(lease) => self.leased(lease, role, &mark).await,
                other => finished(other),
            },
            _ => self.run(once, &intent, mark, None).await,
        }
    }

    /// The effect and its acknowledgement in one transaction; or the effect, and then a failure.
    async fn run(
        &self,
        once: &Once<D>,
        intent: &Intent,
        mark: Mark,
        failure: Option<Failure>,
    ) -> pgonce::Result<Done> {
        let (mark, failure) = (&mark, &failure);
        once.run(intent, |mut attempt| async move {
            self.saw(attempt.kind());
            if !self.sabotage {
                D::write(attempt.conn(), mark).await?;
            }
            if self.path == Path::Publish {
                attempt.publish(&event(mark)?).await?;
            }
            business::write::<D>(self.path, &mut attempt, mark).await?;
            match failure {
                Some(failure) => Err(failure.clone().into()),
                None => attempt.succeed(acknowledgement(mark.attempt)?).await,
            }
        })
        .await
    }

    async fn leased(&self, mut lease: Lease<D>, role: Role, mark: &Mark) -> pgonce::Result<Done> {
        self.saw(lease.kind());
        match self.path {
            Path::LeaseFail if role == Role::First => {
                lease.fail(transient()).await?;
                Err(transient().into())
            }
            Path::LeaseRelease if role == Role::First => {
                lease.release().await?;
                Err(Error::Failed(Failure::transient("released", "given back")))
            }
            Path::LeaseRefuse => {
                lease.fail(refusal()).await?;
                Err(refusal().into())
            }
            Path::LeaseBegin | Path::LeaseTakeover | Path::Recovery => {
                self.end_lease(&lease, mark).await
            }
            Path::LeaseHeartbeat => {
                lease.heartbeat().await?;
                let by = self.call_outside(mark).await?;
                lease.heartbeat().await?;
                lease.succeed(acknowledgement(by)?).await
            }
            _ => {
                let by = self.call_outside(mark).await?;
                lease.succeed(acknowledgement(by)?).await
            }
        }
    }

    /// Effect and success under the fence.
    pub(super) async fn end_lease(&self, lease: &Lease<D>, mark: &Mark) -> pgonce::Result<Done> {
        let mut attempt = lease.begin().await?;
        D::write(attempt.conn(), mark).await?;
        attempt.succeed(acknowledgement(mark.attempt)?).await
    }

    /// The outside world: a system that knows the intent's key and does each once. Answers which
    /// attempt it did it for.
    pub(super) async fn call_outside(&self, mark: &Mark) -> pgonce::Result<i64> {
        let attempt = mark.attempt.to_string();
        let params = [
            Param::Text(Some(&mark.intent)),
            Param::Text(Some(&attempt)),
            Param::Text(Some(&mark.payload)),
        ];
        let by = self
            .ask(
                "select outside($1, $2::text::bigint, $3::text::jsonb)::text",
                &params,
            )
            .await?;
        by.and_then(|by| by.parse().ok())
            .ok_or_else(|| Error::work("the outside world gave no receipt"))
    }

    /// One value, straight from the server.
    pub(super) async fn ask(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> pgonce::Result<Option<String>> {
        ask(&self.calm, sql, params).await
    }

    /// What must never be done: the effect commits by itself, before anybody asked.
    async fn part_effect_from_claim(&self, mark: &Mark) -> pgonce::Result<()> {
        let mut session = self.calm.driver().acquire().await?;
        D::write(session.raw(), mark).await?;
        session.keep();
        Ok(())
    }

    fn saw(&self, kind: ClaimKind) {
        match kind {
            ClaimKind::Fresh => {}
            ClaimKind::Takeover => self.history.saw("takeover"),
            ClaimKind::Retry => self.history.saw("retry"),
        }
    }

    /// What a result means to a client, strictly by what the SDK promises about it.
    pub(super) fn outcome(&self, done: pgonce::Result<Done>) -> Outcome {
        let error = match done {
            Ok(done) => {
                if done.replayed() {
                    self.history.saw("replay");
                }
                return Outcome::Success(done.ack().json().cloned().unwrap_or_default());
            }
            Err(error) => error,
        };
        let code = match &error {
            Error::Uncertain(_) => {
                self.history.saw("uncertain");
                return Outcome::Unknown(error.to_string());
            }
            Error::Work(_) => format!("work: {error}"),
            other => other.code().to_owned(),
        };
        let state = match &error {
            Error::Conflict(_) => "conflict",
            Error::Busy { .. } => "busy",
            Error::Fenced(_) => "fenced",
            Error::LostRace(_) => "lost race",
            Error::Refused(_) => "refused",
            Error::Gone(_) => "gone",
            Error::Disconnected(_) => "disconnected",
            _ => "",
        };
        if !state.is_empty() {
            self.history.saw(state);
        }
        // What it called for outside of the database may stand.
        if self.path.is_outside()
            && (matches!(state, "fenced" | "disconnected") || code.starts_with("external_"))
        {
            if code == "external_unknown" {
                self.history.saw("outcome not known");
            }
            return Outcome::Unknown(error.to_string());
        }
        Outcome::Failed(code)
    }

    /// Tries again until it gets a final answer, as a real client would; `None` when that did
    /// not happen in time.
    pub(super) async fn insist(
        &self,
        role: Role,
        payload: &Value,
        within: Duration,
    ) -> Result<Outcome, Option<Outcome>> {
        let until = tokio::time::Instant::now() + within;
        let (mut last, mut role) = (None, role);
        let mut pause = Duration::from_millis(1);
        loop {
            match tokio::time::timeout_at(until, self.attempt_with(&self.calm, role, payload)).await
            {
                Ok(outcome) if self.is_answer(&outcome) => return Ok(outcome),
                Ok(outcome) => last = Some(outcome),
                Err(_) => return Err(last),
            }
            if self.path == Path::ExternalLookUp && self.first_is_over.load(Relaxed) {
                outside::operate(self).await;
            }
            role = Role::Again;
            if tokio::time::Instant::now() >= until {
                return Err(last);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn is_answer(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Success(_) => true,
            Outcome::Failed(code) => self.path.ends_with() == Some(code),
            Outcome::Unknown(_) => false,
        }
    }
}

/// One value, by a statement in a transaction of its own.
pub(super) async fn ask<D: DriverExt>(
    once: &Once<D>,
    sql: &str,
    params: &[Param<'_>],
) -> pgonce::Result<Option<String>> {
    let statement = Statement {
        sql: sql.into(),
        keep: true,
        pooled: false,
    };
    let mut session = once.driver().acquire().await?;
    let rows = session.query(&statement, params).await?;
    session.keep();
    Ok(rows
        .into_iter()
        .next()
        .and_then(|row| row.into_iter().next().flatten()))
}

/// What is recorded about an effect.
fn event(mark: &Mark) -> pgonce::Result<Event> {
    Event::new(Path::Publish.name(), "effect.made")
        .subject(&*mark.intent)
        .payload(&json!({ "intent": mark.intent, "sequence": 1 }))
}

/// Names the attempt whose effect it is.
pub(super) fn acknowledgement(by: i64) -> pgonce::Result<Ack> {
    Ack::value(&json!({ "by": by }))
}

fn refusal() -> Failure {
    Failure::permanent("declined", "the bank said no")
}

fn transient() -> Failure {
    Failure::transient("bank_closed", "the bank is closed")
}
