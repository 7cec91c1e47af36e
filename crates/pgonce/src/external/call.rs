//! One call, from its record to its outcome.
//!
//! What can strike, and what is left: before the record, nothing; between the record and the answer, `sent`, which a
//! retried command sends again only where the provider honours keys, and the reconciler looks up; between the answer and its
//! record, the same; a lost lease, the same: what the provider answers is recorded, and the old holder goes no further.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::store::{opened, or_nothing, reference_to_store, refuses_value, stored};
use super::{CallError, Effect, Provider, Reply, Report, Step};
use crate::call::{Args, Row, Sql};
use crate::driver::Driver;
use crate::error::{Error, ErrorDetail, Result};
use crate::failure::Failure;
use crate::lease::Lease;
use crate::term::may_pass;

static SEND: Sql = Sql::kept(
    "select action, effect_key::text, status, reference, response::text, failure_code, failure_message, \
     pg_catalog.ceil(extract(epoch from retry_after) operator(pg_catalog.*) 1000)::bigint::text, sends::text, \
     (extract(epoch from sent_at) operator(pg_catalog.*) 1000000)::bigint::text \
     from pgonce.external_send($1, $2, $3::text::bigint, $4, $5, $6, $7, $8::text::boolean, $9::text::uuid, $10)",
);
static RECORD: Sql = Sql::kept(
    "select action, effect_key::text, status, reference, response::text, failure_code, failure_message, \
     pg_catalog.ceil(extract(epoch from retry_after) operator(pg_catalog.*) 1000)::bigint::text, sends::text, \
     (extract(epoch from sent_at) operator(pg_catalog.*) 1000000)::bigint::text \
     from pgonce.external_record($1, $2, $3::text::bigint, $4, $5, $6, $7, $8, $9, $10, $11::text::uuid)",
);

/// Minimum time for which the record of a response is tried, also when the lease is over: what the provider said is true
/// all the same, and nobody else may ever learn it.
const RECORD_FOR: Duration = Duration::from_secs(30);

/// The calls of a leased command. Made by [`Lease::external`].
#[derive(Debug)]
pub struct External<'l, D: Driver> {
    lease: &'l mut Lease<D>,
}

impl<D: Driver> Lease<D> {
    /// Calls to providers, each recorded before it is sent.
    ///
    /// ```no_run
    /// # use pgonce::external::Provider;
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(once: pgonce::sqlx::Once, intent: pgonce::Intent, bank: impl Provider) -> Result<(), pgonce::Error> {
    /// let bank = &bank;
    /// let done = once
    ///     .run_leased(&intent, |mut lease| async move {
    ///         let charged = lease.external().call("charge", bank, &serde_json::json!({"amount": 5})).await?;
    ///         lease.succeed(&charged.reference).await
    ///     })
    ///     .await?;
    /// # let _ = done;
    /// # Ok(())
    /// # }
    /// ```
    pub fn external(&mut self) -> External<'_, D> {
        External { lease: self }
    }
}

/// What the database says about a step.
struct Next {
    action: String,
    status: String,
    effect: Effect,
    response: Option<String>,
    code: Option<String>,
    message: Option<String>,
    retry_after: Option<Duration>,
    /// In microseconds.
    sent_at: Option<String>,
}

impl Next {
    fn read(mut row: Row, step: &str, tenant: &str) -> Result<Self> {
        let (action, key, status) = (row.text()?, row.text()?, row.text()?);
        let reference = row.opt_text();
        let (response, code, message) = (row.opt_text(), row.opt_text(), row.opt_text());
        let retry_after = row.opt_millis()?;
        let effect = Effect {
            key,
            reference,
            step: step.to_owned(),
            tenant: tenant.to_owned(),
            sends: row.get()?,
        };
        Ok(Self {
            action,
            status,
            effect,
            response,
            code,
            message,
            retry_after,
            sent_at: row.opt_text(),
        })
    }
}

impl<D: Driver> External<'_, D> {
    /// Calls a provider once, and renews the lease meanwhile. A retried command gets the result of the step that is done;
    /// the same step with another request is [`Error::Conflict`] (`P4086`).
    ///
    /// Leave the command with its errors: [`Error::Refused`] where the provider rejected it; [`Error::Failed`] with the
    /// code `external_unknown` or `external_needs_operator` where it may have happened, and `external_wait` where it was
    /// not sent. A command that is tried again goes on from there.
    pub async fn call<P: Provider>(
        &mut self,
        step: impl Into<Step>,
        provider: &P,
        request: &(impl Serialize + ?Sized),
    ) -> Result<Reply> {
        let (step, request) = (step.into(), serde_json::to_value(request)?);
        let give_up = Instant::now() + step.wait;
        let mut asked = false;
        loop {
            fault_point!("external.before_send");
            // After a lost reply the same try may still go ahead, and its record is that of no other.
            let send = Uuid::new_v4().to_string();
            let next = self.send(&step, provider, &request, &send).await?;
            return match next.action.as_str() {
                "send" => {
                    fault_point!("external.sent");
                    self.call_out(&step, provider, &request, next, &send).await
                }
                "wait" => {
                    let pause = next.retry_after.unwrap_or_default();
                    if Instant::now() + pause > give_up {
                        return Err(not_sent(&next, provider.name()));
                    }
                    self.lease.renew_while(sleep(pause)).await?;
                    continue;
                }
                "unknown" if !asked => {
                    self.ask(&step, provider, &next).await?;
                    asked = true;
                    continue;
                }
                _ => self.ended(next),
            };
        }
    }

    async fn send<P: Provider>(
        &self,
        step: &Step,
        provider: &P,
        request: &Value,
        send: &str,
    ) -> Result<Next> {
        let (once, intent) = (self.lease.once(), self.lease.intent());
        let storage = provider.store_request();
        let digest = storage.digest(request)?;
        let mut kept = stored(&storage, once.keys(), intent, Some(request))?;
        let mut tries = self.lease.tries();
        loop {
            let args = self
                .names(step)
                .text(provider.name())
                .bytes(&digest)
                .json(kept.as_deref())
                .bool(step.decides)
                .text(send)
                .text(intent.tenant_name());
            match once.caller().write(&SEND, args).await {
                Ok(rows) => return Next::read(rows.one()?, &step.name, intent.tenant_name()),
                // A request that cannot be stored can be sent.
                Err(error) if kept.is_some() && refuses_value(&error) => {
                    tracing::warn!(
                        code = error.code(),
                        step = step.name,
                        "the request cannot be stored"
                    );
                    kept = None;
                }
                Err(error) => tries.after(error).await?,
            }
        }
    }

    async fn call_out<P: Provider>(
        &mut self,
        step: &Step,
        provider: &P,
        request: &Value,
        next: Next,
        send: &str,
    ) -> Result<Reply> {
        let begun = AtomicBool::new(false);
        let mut call = pin!(timeout(step.timeout, async {
            begun.store(true, Ordering::Relaxed);
            provider.call(&next.effect, request).await
        }));
        let (answer, lost) = match self.lease.renew_while(call.as_mut()).await {
            Ok(answer) => (answer, None),
            // Somebody else holds the intent, and decides whether it is sent.
            Err(error) if !begun.load(Ordering::Relaxed) => {
                let why = "the lease was lost before the request was sent".to_owned();
                (Ok(Err(CallError::NotSent(why))), Some(error))
            }
            // The request is on its way all the same, and its answer may be the only one.
            Err(error) => (call.await, Some(error)),
        };
        let answer = answer
            .unwrap_or_else(|_| Err(CallError::unknown("the provider did not answer in time")));
        fault_point!("external.answered");
        let recorded = self.record(step, provider, &answer, send).await;
        if let Some(error) = lost {
            if let Err(error) = recorded {
                tracing::warn!(%error, effect = %next.effect, "a late response was not recorded");
            }
            return Err(error);
        }
        let recorded = recorded?;
        fault_point!("external.recorded");
        match (answer, recorded.action.as_str()) {
            (Ok(reply), "done") => Ok(reply),
            (_, "fenced") => Err(fenced(&recorded.effect)),
            (_, "wait") => Err(not_sent(&recorded, provider.name())),
            _ => self.ended(recorded),
        }
    }

    async fn record<P: Provider>(
        &self,
        step: &Step,
        provider: &P,
        answer: &Result<Reply, CallError>,
        send: &str,
    ) -> Result<Next> {
        let (once, intent) = (self.lease.once(), self.lease.intent());
        let why_text;
        let (mut reference, mut body, mut code, mut message) = (None, None, None, None);
        let outcome = match answer {
            Ok(reply) => {
                (reference, body) = (reply.reference.as_deref(), reply.body.as_ref());
                "confirmed"
            }
            Err(CallError::Rejected(failure)) => {
                (code, message) = (Some(failure.code()), Some(failure.message()));
                body = failure.answer();
                "failed"
            }
            Err(CallError::NotSent(why)) => {
                why_text = why.replace('\0', "");
                message = Some(why_text.as_str());
                "not_sent"
            }
            Err(CallError::Unknown { why, reference: at }) => {
                why_text = why.replace('\0', "");
                (reference, message) = (at.as_deref(), Some(why_text.as_str()));
                "unknown"
            }
        };
        let mut reference = reference_to_store(reference);
        let mut kept = or_nothing(stored(
            &provider.store_response(),
            once.keys(),
            intent,
            body,
        ));
        let mut tries = self.lease.tries();
        let until = Instant::now() + RECORD_FOR;
        loop {
            let args = self
                .names(step)
                .text(outcome)
                .text(reference)
                .json(kept.as_deref())
                .text(code)
                .text(message)
                .text(intent.tenant_name())
                .text(send);
            let written = timeout(RECORD_FOR / 3, once.caller().write(&RECORD, args)).await;
            let written = written.unwrap_or_else(|_| {
                let why = "the database did not answer in time";
                Err(Error::Uncertain(why.to_owned()))
            });
            let error = match written {
                Ok(rows) => return Next::read(rows.one()?, &step.name, intent.tenant_name()),
                Err(error) => error,
            };
            if refuses_value(&error) && (kept.is_some() || message.is_some() || reference.is_some())
            {
                // What cannot be stored must not hide that there was a response.
                tracing::warn!(
                    code = error.code(),
                    step = step.name,
                    "the response cannot be stored"
                );
                if kept.take().is_none() {
                    (reference, message) = (None, None);
                    code = code.filter(|code| code.is_ascii());
                }
            } else if let Err(error) = tries.after(error).await {
                if !may_pass(&error) || Instant::now() >= until {
                    return Err(error);
                }
                sleep(RECORD_FOR / 60).await;
            }
        }
    }

    /// Asks the provider about a call that cannot be sent again, and records what it says.
    async fn ask<P: Provider>(&mut self, step: &Step, provider: &P, next: &Next) -> Result<()> {
        let effect = &next.effect;
        let look = timeout(step.timeout, provider.look_up(effect));
        let report = match self.lease.renew_while(look).await? {
            Ok(Ok(found)) => Report::found(found),
            Ok(Err(error)) => {
                tracing::warn!(%error, %effect, "the provider could not be asked");
                None
            }
            Err(_) => None,
        };
        if let Some(report) = report {
            // An operator may have allowed another try meanwhile.
            let report = report.effect_key(&effect.key).sent_at(next.sent_at.clone());
            let once = self.lease.once();
            once.observe_for(provider, report, Some(self.lease.intent()), "look_up")
                .await?;
        }
        Ok(())
    }

    /// How a step ended, for the command.
    fn ended(&self, next: Next) -> Result<Reply> {
        let (once, intent) = (self.lease.once(), self.lease.intent());
        let body = || opened(once.keys(), intent, next.response.clone());
        match next.action.as_str() {
            "done" => Ok(Reply {
                reference: next.effect.reference.clone(),
                body: body()?,
                replayed: true,
            }),
            "failed" => {
                let code = next.code.as_deref().unwrap_or("failed");
                let message = next.message.as_deref().unwrap_or(code);
                Err(Failure::new(false, code.to_owned(), message.to_owned(), body()?).into())
            }
            _ => {
                let code = match next.status.as_str() {
                    "needs_operator" => "external_needs_operator",
                    _ => "external_unknown",
                };
                let message = format!("whether {} happened is not known yet", next.effect);
                Err(Failure::transient(code, message).into())
            }
        }
    }

    fn names<'a>(&'a self, step: &'a Step) -> Args<'a> {
        let intent = self.lease.intent();
        Args::texts([intent.scope(), intent.key()])
            .int(self.lease.fence())
            .text(step.name.as_str())
    }
}

fn fenced(effect: &Effect) -> Error {
    Error::Fenced(ErrorDetail::new(
        "P4012",
        format!("the response to {effect} is recorded, and another attempt holds the intent"),
        "Stop; claim again to learn the answer.",
    ))
}

fn not_sent(next: &Next, provider: &str) -> Error {
    let message = match &next.message {
        Some(why) => format!("{provider} did not take {}: {why}", next.effect),
        None => format!(
            "{} was not sent: {provider} is at its limit or does not answer",
            next.effect
        ),
    };
    Failure::transient("external_wait", message).into()
}
