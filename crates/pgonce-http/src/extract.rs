//! What a handler may ask for.

use std::convert::Infallible;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::request::Parts;
use http::{Extensions, StatusCode};
use pgonce::driver::Driver;
use pgonce::unstable::{Lender, Loan};
use pgonce::{Attempt, ClaimKind, Error, Intent, Result};

use crate::Problem;

/// Which attempt at the intent this is. In the request's extensions before the inner service
/// is called, and an extractor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptInfo {
    /// 1 for the first.
    pub number: u32,
    /// The number that shuts out older attempts; send it along where others can check it.
    pub fence: i64,
    /// How the claim was obtained. After [`ClaimKind::Takeover`] the first holder may have
    /// done some of the work.
    pub kind: ClaimKind,
}

/// The client's key, as it was sent, without quotes. In the request's extensions, and an extractor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key(pub Arc<str>);

macro_rules! from_extensions {
    ($name:ident, $what:literal) => {
        impl<S: Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;

            async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Problem> {
                let found = head.extensions.get::<Self>().cloned();
                found.ok_or_else(|| no_layer($what))
            }
        }

        impl<S: Sync> OptionalFromRequestParts<S> for $name {
            type Rejection = Infallible;

            async fn from_request_parts(
                head: &mut Parts,
                _: &S,
            ) -> Result<Option<Self>, Infallible> {
                Ok(head.extensions.get::<Self>().cloned())
            }
        }
    };
}

from_extensions!(AttemptInfo, "an attempt");
from_extensions!(Key, "a key");

fn no_layer(what: &'static str) -> Problem {
    tracing::error!("the handler asks for {what}, but no pgonce layer has put one there");
    Problem::ours(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "this route is not set up right; the server's log says what is missing",
    )
}

/// The open transaction of an atomic route: what is done with it commits together with the
/// response, or not at all. It derefs to [`pgonce::Tx`], and works for the tenant of the request.
///
/// ```no_run
/// use axum::Json;
/// use http::{Extensions, StatusCode};
/// use pgonce::driver::sqlx::Sqlx;
/// use pgonce_http::{HandlerError, Tx};
///
/// async fn create(mut tx: Tx<Sqlx>, Json(item): Json<String>) -> Result<(StatusCode, Json<i64>), HandlerError> {
///     let id: i64 = sqlx::query_scalar("insert into orders (item) values ($1) returning id")
///         .bind(item)
///         .fetch_one(tx.conn())
///         .await?;
///     Ok((StatusCode::CREATED, Json(id)))
/// }
/// ```
///
/// It goes back to the layer when it is dropped, at the end of the handler at the latest. A
/// handler that passes it on to a task of its own gets its client a 500 and commits nothing.
pub struct Tx<D: Driver> {
    attempt: Loan<Attempt<D>>,
    notes: Arc<Mutex<Notes>>,
}

impl<D: Driver> Tx<D> {
    /// The transaction from a request's extensions, for services that are not axum handlers (tonic).
    pub fn from_extensions(extensions: &Extensions) -> Result<Self, Problem> {
        let slot = extensions.get::<Slot<D>>();
        let slot = slot
            .ok_or_else(|| no_layer("a transaction (IdempotencyLayer::atomic, of this driver)"))?;
        let attempt = slot
            .attempt
            .lend()
            .ok_or_else(|| no_layer("a second transaction while it holds the first"))?;
        Ok(Self {
            attempt,
            notes: slot.notes.clone(),
        })
    }

    /// The intent that is attempted.
    pub fn intent(&self) -> &Intent {
        self.attempt.intent()
    }

    /// Keeps a reference to what was made beside the answer, for operators and for scopes that
    /// keep only references.
    pub fn refer_to(&mut self, kind: impl Into<String>, id: impl ToString) {
        lock(&self.notes).reference = Some((kind.into(), id.to_string()));
    }

    /// Reports an error to the layer, for services whose own errors cannot carry it (tonic): it
    /// does the same as for a [`HandlerError`](crate::HandlerError), whatever is answered.
    pub fn failed(&mut self, error: impl Into<Error>) {
        lock(&self.notes).error = Some(error.into());
    }
}

impl<D: Driver> Deref for Tx<D> {
    type Target = pgonce::Tx<D::Session>;

    fn deref(&self) -> &Self::Target {
        &self.attempt
    }
}

/// Whatever is done in the transaction comes through here: from then on something may be written.
impl<D: Driver> DerefMut for Tx<D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        lock(&self.notes).touched = true;
        &mut self.attempt
    }
}

impl<D: Driver> fmt::Debug for Tx<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tx").field(&*self.attempt).finish()
    }
}

impl<D: Driver, S: Sync> FromRequestParts<S> for Tx<D> {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::from_extensions(&head.extensions)
    }
}

/// The attempt, lent to the handler, and what the handler says about it.
pub(crate) struct Slot<D: Driver> {
    attempt: Lender<Attempt<D>>,
    notes: Arc<Mutex<Notes>>,
}

#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) reference: Option<(String, String)>,
    /// Whether the handler ever asked for the transaction: before that it has done nothing.
    pub(crate) touched: bool,
    /// What went wrong, where the handler said so.
    pub(crate) error: Option<Error>,
}

impl<D: Driver> Slot<D> {
    pub(crate) fn new(attempt: Attempt<D>) -> Self {
        Self {
            attempt: Lender::new(attempt),
            notes: Arc::default(),
        }
    }

    /// The attempt, unless the handler still has it.
    pub(crate) fn take(&self) -> Option<Attempt<D>> {
        self.attempt.take()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Notes> {
        lock(&self.notes)
    }
}

fn lock(notes: &Mutex<Notes>) -> MutexGuard<'_, Notes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Driver> Clone for Slot<D> {
    fn clone(&self) -> Self {
        Self {
            attempt: self.attempt.clone(),
            notes: self.notes.clone(),
        }
    }
}
