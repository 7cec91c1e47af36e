//! The values that a policy is made of.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use pgonce::Fingerprint;

/// A future in a box.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The scope that a request's intent belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// One scope for all requests.
    Named(String),
    /// One for each operation, named after it: `POST /orders`.
    Operation,
}

/// Where the API version is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiVersion {
    /// No version.
    None,
    /// A fixed version.
    Fixed(String),
    /// The value of a header.
    Header(HeaderName),
}

type Find = dyn Fn(&Parts) -> Option<String> + Send + Sync;
type MakePrint = dyn Fn(&Parts, &Bytes) -> Fingerprint + Send + Sync;
type Ask = dyn Fn(Parts) -> BoxFuture<Result<(), Box<Response>>> + Send + Sync;

/// The identity of a caller, read from the request's head: a principal or a tenant.
///
/// Keys belong to a principal: the same key of two principals never meets, so that no caller is
/// given another caller's response. Name the person or account, never the credential: a token that
/// is renewed between two attempts must not make two requests of one. And name it from what was
/// verified: put authentication outside of this layer and read what it found.
#[derive(Clone)]
#[non_exhaustive]
pub enum Caller {
    /// No identity. As a principal: all callers share one set of keys, and a caller who repeats
    /// another's key and request gets the other's response. Only for services with one caller.
    None,
    /// The value of a header that a trusted proxy sets.
    Header(HeaderName),
    /// The result of a function.
    With(Arc<Find>),
}

impl Caller {
    /// The result of a function of the request's head; `None` refuses the request (401
    /// where a principal is missing, 400 where a tenant is).
    pub fn with(find: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::With(Arc::new(find))
    }

    /// The result of a function of an extension that an outer layer has inserted; a request
    /// without it is refused.
    pub fn from_extension<T: Send + Sync + 'static>(
        name: impl Fn(&T) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self::with(move |head| head.extensions.get::<T>().and_then(&name))
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Header(name) => write!(f, "Header({name})"),
            Self::With(_) => f.write_str("With(..)"),
        }
    }
}

/// How a request's body is compared with an earlier one under the same key. Method, path, query
/// and API version always count as well.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum RequestPrint {
    /// JSON as [`RequestPrint::Json`], multipart forms as [`RequestPrint::Multipart`], all else
    /// byte by byte.
    ByContentType,
    /// Byte by byte.
    Bytes,
    /// By the meaning of JSON (RFC 8785): order of members and white space do not count. What is
    /// not JSON, and numbers that a double cannot hold exactly, count byte by byte.
    Json,
    /// Only these members of a JSON document, as JSON pointers (`/customer/id`); the whole document where it has none of
    /// them.
    Only(Vec<String>),
    /// A JSON document without these members, as JSON pointers.
    Except(Vec<String>),
    /// Part by part: headers and contents as they came; the boundary does not count.
    Multipart,
    /// A function of yours.
    Custom(Print),
}

/// A function that makes a fingerprint of a request's head and body.
#[derive(Clone)]
pub struct Print(pub(crate) Arc<MakePrint>);

impl Print {
    /// Wraps the function.
    pub fn new(print: impl Fn(&Parts, &Bytes) -> Fingerprint + Send + Sync + 'static) -> Self {
        Self(Arc::new(print))
    }
}

impl fmt::Debug for Print {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Print(..)")
    }
}

/// What happens to a response that is larger than the policy keeps, or a stream. It is never
/// cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Oversize {
    /// The client gets 500. In atomic mode nothing happened and the key is free; in leased
    /// mode it happened, or may have, and the problem says which; every retry gets the same.
    #[default]
    Refuse,
    /// It is passed on whole, and only its status is kept: a retry gets 410, which says that it happened and
    /// that the answer was not kept.
    PassUnkept,
}

/// A hook that is asked before a stored answer is given out: `Err` is sent instead.
#[derive(Clone)]
pub struct Reauthorise(pub(crate) Arc<Ask>);

impl Reauthorise {
    /// Wraps the hook. It gets the head of the request that would be answered by the replay.
    pub fn new<F>(hook: impl Fn(Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), Response>> + Send + 'static,
    {
        Self(Arc::new(move |head| {
            let asked = hook(head);
            Box::pin(async move { asked.await.map_err(Box::new) })
        }))
    }
}

impl fmt::Debug for Reauthorise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reauthorise(..)")
    }
}

/// Which headers of an answer are kept and replayed. Some never are, whatever is chosen here:
/// cookies, hop-by-hop headers, `Date`, `Age`, rate limits, and what this layer sets itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayHeaders {
    /// These.
    Only(Vec<HeaderName>),
    /// All but those that never are.
    All,
}

impl ReplayHeaders {
    /// The usual ones and these.
    pub fn usual_and(more: impl IntoIterator<Item = HeaderName>) -> Self {
        match Self::default() {
            Self::Only(mut usual) => {
                usual.extend(more);
                Self::Only(usual)
            }
            Self::All => Self::All,
        }
    }

    pub(crate) fn keeps(&self, name: &HeaderName, value: &HeaderValue) -> bool {
        !value.is_sensitive()
            && !crate::headers::is_never_kept(name)
            && match self {
                Self::Only(names) => names.contains(name),
                Self::All => true,
            }
    }
}

impl Default for ReplayHeaders {
    fn default() -> Self {
        Self::Only(crate::headers::usual())
    }
}
