//! What a provider says about a call, by webhook or when it is asked.

use serde_json::Value;

use super::store::{or_nothing, reference_to_store, refuses_value, stored};
use super::{Found, Provider, Reply};
use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::Result;
use crate::failure::Failure;
use crate::intent::Intent;
use crate::once::Once;
use crate::seal;

static OBSERVE: Sql = Sql::kept(
    "select pgonce.external_observe($1, $2, $3::text::uuid, $4, $5, $6, $7, $8, $9, $10, $11, \
     timestamptz 'epoch' operator(pg_catalog.+) ($12::text::bigint operator(pg_catalog.*) interval '1 microsecond'))",
);

/// A provider's report about a call.
///
/// ```
/// use pgonce::external::{Reply, Report};
///
/// let report = Report::confirmed(Reply::new(&"charged")?.reference("ch_7")).event_id("evt_1");
/// # let _ = report;
/// # Ok::<(), pgonce::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a report is nothing until Once::observe"]
pub struct Report {
    confirmed: bool,
    reference: Option<String>,
    body: Option<Value>,
    failure: Option<Failure>,
    effect_key: Option<String>,
    event_id: Option<String>,
    tenant: String,
    sent_at: Option<String>,
}

/// What a report changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Observed {
    /// It decided the call.
    Applied,
    /// The call was decided so before, or the event came before.
    Known,
    /// The call was decided otherwise before. That stays, and an operator sees the dispute.
    Disputed,
    /// No call has this key or reference yet; the event is kept until one has it.
    Waiting,
    /// There is no such call, and nothing was kept.
    NoCall,
}

impl Report {
    /// It happened.
    pub fn confirmed(reply: Reply) -> Self {
        Self {
            confirmed: true,
            reference: reply.reference,
            body: reply.body,
            failure: None,
            effect_key: None,
            event_id: None,
            tenant: String::new(),
            sent_at: None,
        }
    }

    /// It did not happen, and will not.
    pub fn failed(failure: Failure) -> Self {
        Self {
            confirmed: false,
            failure: Some(failure),
            ..Self::confirmed(Reply::default())
        }
    }

    /// What a look-up found; nothing where it decided nothing.
    pub(super) fn found(found: Found) -> Option<Self> {
        match found {
            Found::Confirmed(reply) => Some(Self::confirmed(reply)),
            Found::Failed(failure) => Some(Self::failed(failure)),
            Found::Unknown => None,
        }
    }

    /// The key that the provider got ([`Effect::key`](super::Effect::key)). Default: the call is found by its reference.
    pub fn effect_key(mut self, key: impl Into<String>) -> Self {
        self.effect_key = Some(key.into());
        self
    }

    /// What the provider calls it.
    pub fn reference(mut self, reference: impl Into<String>) -> Self {
        self.reference = Some(reference.into());
        self
    }

    /// The provider's id of the event: it counts once, and is kept until a call has its key or reference. Default: none.
    pub fn event_id(mut self, id: impl Into<String>) -> Self {
        self.event_id = Some(id.into());
        self
    }

    /// The try that a look-up is about, by when it was sent.
    pub(super) fn sent_at(mut self, micros: Option<String>) -> Self {
        self.sent_at = micros;
        self
    }

    /// The tenant of the command. Default: none.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }
}

impl<D: Driver> Once<D> {
    /// Takes in what a provider reported by webhook, whose sender you have verified. It may come before the response, and
    /// more than once. Where stored answers are encrypted, nothing of its body is stored; nor is a body that the database
    /// refuses, such as one with U+0000.
    ///
    /// ```no_run
    /// # use pgonce::external::{Provider, Reply, Report};
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(once: pgonce::sqlx::Once, bank: impl Provider) -> Result<(), pgonce::Error> {
    /// let report = Report::confirmed(Reply::default().reference("ch_7")).event_id("evt_1");
    /// let observed = once.observe(&bank, report).await?;
    /// # let _ = observed;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn observe<P: Provider>(&self, provider: &P, report: Report) -> Result<Observed> {
        self.observe_for(provider, report, None, "webhook").await
    }

    /// The same for a call whose command is known.
    pub(super) async fn observe_for<P: Provider>(
        &self,
        provider: &P,
        report: Report,
        intent: Option<&Intent>,
        source: &str,
    ) -> Result<Observed> {
        fault_point!("external.before_observe");
        let body = report.body.as_ref();
        let storage = provider.store_response();
        let kept = body.and_then(|body| or_nothing(storage.answer(body)));
        let (mut response, mut answer) = match (intent, self.keys()) {
            (Some(intent), keys) => (
                or_nothing(stored(&storage, keys, intent, body)),
                or_nothing(seal::stored(keys, intent, kept.as_ref())),
            ),
            (None, Some(_)) => (None, None),
            (None, None) => (
                body.and_then(|body| or_nothing(storage.bounded(body)))
                    .map(|kept| kept.to_string()),
                kept.as_ref().map(Value::to_string),
            ),
        };
        let failure = report.failure.as_ref();
        let outcome = match report.confirmed {
            true => "confirmed",
            false => "failed",
        };
        let (mut code, mut message) = (failure.map(Failure::code), failure.map(Failure::message));
        // A call that is named by its key needs no reference that cannot be stored.
        let mut reference = match report.effect_key {
            Some(_) => reference_to_store(report.reference.as_deref()),
            None => report.reference.as_deref(),
        };
        let mut row = loop {
            let args = Args::texts([provider.name(), outcome])
                .text(report.effect_key.as_deref())
                .text(reference)
                .text(report.event_id.as_deref())
                .json(response.as_deref())
                .json(answer.as_deref())
                .text(code)
                .text(message)
                .text(source)
                .text(intent.map_or(report.tenant.as_str(), Intent::tenant_name))
                .text(report.sent_at.as_deref());
            let error = match self.caller().write(&OBSERVE, args).await {
                Ok(rows) => break rows.one()?,
                Err(error) => error,
            };
            let named = report.effect_key.is_some();
            let bodies = response.is_some() || answer.is_some();
            if !refuses_value(&error)
                || !(bodies || message.is_some() || named && reference.is_some())
            {
                return Err(error);
            }
            // What cannot be stored must not hide what the provider said.
            tracing::warn!(
                code = error.code(),
                provider = provider.name(),
                "what a provider reported cannot be stored"
            );
            if bodies {
                (response, answer) = (None, None);
            } else {
                code = code.filter(|code| code.is_ascii());
                message = None;
                reference = reference.filter(|_| !named);
            }
        };
        fault_point!("external.observed");
        Ok(match row.text()?.as_str() {
            "applied" => Observed::Applied,
            "known" => Observed::Known,
            "disputed" => Observed::Disputed,
            "waiting" => Observed::Waiting,
            _ => Observed::NoCall,
        })
    }
}
