//! The status URL: where a client that got 202 polls for the response.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use pgonce::driver::Driver;
use pgonce::{Claim, Fingerprint, Intent};
use serde_json::json;

use crate::counters::Event;
use crate::engine::{Replay, replayed};
use crate::layer::RouteState;
use crate::problem::seconds;
use crate::{IdempotencyLayer, Key, Policy, Problem, key, request};

/// What a status URL stands for, apart from who asks: the client's key, the operation and the
/// fingerprint. It travels in the request's extensions from where they are known.
#[derive(Debug, Clone)]
pub(crate) struct StatusToken(pub(crate) String);

impl StatusToken {
    pub(crate) fn new(key: &str, operation: &str, print: &Fingerprint) -> Self {
        let print = BASE64_URL_SAFE_NO_PAD.encode(print.as_bytes());
        let text = json!([key, operation, print]).to_string();
        Self(BASE64_URL_SAFE_NO_PAD.encode(text))
    }

    pub(crate) fn read(token: &str) -> Option<(String, String, Fingerprint)> {
        let text = BASE64_URL_SAFE_NO_PAD.decode(token).ok()?;
        let (key, operation, print): (String, String, String) =
            serde_json::from_slice(&text).ok()?;
        let print = BASE64_URL_SAFE_NO_PAD.decode(print).ok()?;
        Some((key, operation, Fingerprint::custom(print)))
    }
}

/// Answers a client whose request is under way: 202, and where to ask for the answer.
pub(crate) fn accepted(policy: &Policy, head: &Parts, after: Duration) -> Option<Response> {
    let base = policy.status_at.as_ref()?;
    let StatusToken(token) = head.extensions.get()?;
    let url = format!("{}/{token}", base.trim_end_matches('/'));
    let mut response = under_way(after);
    response
        .headers_mut()
        .insert(header::LOCATION, HeaderValue::from_str(&url).ok()?);
    Some(response)
}

fn under_way(after: Duration) -> Response {
    let mut response = Response::new(Body::from(r#"{"status":"processing"}"#));
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(
        header::RETRY_AFTER,
        seconds(after.min(Duration::from_secs(5))).into(),
    );
    response
}

/// The route behind [`Policy::status_at`], to be mounted at that path with `/{token}` behind it.
///
/// It answers 202 while the work is under way, then the stored answer itself, and 404 where
/// nothing is under way. Who asks is read from the request as on the route itself, so put the same
/// authentication in front of it: with another principal the same URL finds nothing.
///
/// ```no_run
/// # fn example<D: pgonce::driver::Driver>(layer: pgonce_http::IdempotencyLayer<D>) -> axum::Router {
/// use axum::Router;
/// use pgonce_http::status_route;
///
/// Router::new().route("/orders/status/{token}", status_route(&layer))
/// # }
/// ```
pub fn status_route<D: Driver, S: Clone + Send + Sync + 'static>(
    layer: &IdempotencyLayer<D>,
) -> MethodRouter<S> {
    get(look::<D>).with_state(layer.state.clone())
}

async fn look<D: Driver>(
    State(state): State<Arc<RouteState<D>>>,
    Path(token): Path<String>,
    request: axum::extract::Request,
) -> Response {
    let (head, _) = request.into_parts();
    let looked = answer(&state, &head, &token).await;
    looked.unwrap_or_else(|problem| problem.into_response_at(&state.policy.errors_at))
}

async fn answer<D: Driver>(
    state: &RouteState<D>,
    head: &Parts,
    token: &str,
) -> Result<Response, Problem> {
    let policy = &state.policy;
    let (key, operation, print) = StatusToken::read(token).ok_or_else(not_under_way)?;
    let principal = request::principal(head, policy)?;
    let tenant = request::tenant(head, policy)?;
    let name = match policy.plain_keys {
        true => key.clone(),
        false => key::stored(&key, &operation, principal.as_deref()),
    };
    let scope = request::scope(policy, &operation).into_owned();
    let intent = Intent::with_fingerprint(scope, name, print)
        .and_then(|intent| intent.tenant(tenant))
        .map_err(|_| not_under_way())?;
    let claimed = tokio::time::timeout(policy.database_timeout, state.once.claim(&intent)).await;
    let claimed = claimed.unwrap_or_else(|_| {
        Err(pgonce::Error::Disconnected(
            "the database did not answer in time".to_owned(),
        ))
    });
    let replay = match claimed {
        Ok(Claim::Busy { retry_after }) => return Ok(under_way(retry_after)),
        Ok(Claim::Replay(done)) => Replay::Done(done.into_ack()),
        Ok(Claim::Refused(failure)) => Replay::Refused(failure),
        Ok(Claim::Run(attempt)) => {
            // Only looked: the right to do the work goes back.
            let _ = attempt.abandon().await;
            return Err(not_under_way());
        }
        Err(error) => return Err(Problem::from(&error)),
    };
    state.counters.count(Event::replayed);
    let mut head = head.clone();
    head.extensions.insert(Key(key.into()));
    replayed(state, &head, replay).await
}

fn not_under_way() -> Problem {
    Problem::ours(
        StatusCode::NOT_FOUND,
        "not_under_way",
        "nothing is under way here; send the request again with the same key",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that got 202 from one service may ask another, in another language.
    #[test]
    fn a_status_token_is_that_of_every_client() {
        let print = Fingerprint::custom((0..32).collect::<Vec<u8>>());
        let StatusToken(token) = StatusToken::new("k1", "POST /orders", &print);
        assert_eq!(
            token,
            "WyJrMSIsIlBPU1QgL29yZGVycyIsIkFBRUNBd1FGQmdjSUNRb0xEQTBPRHhBUkVoTVVGUllYR0JrYUd4d2RIaDgiXQ"
        );
        let (key, operation, read) = StatusToken::read(&token).unwrap();
        assert_eq!((key.as_str(), operation.as_str()), ("k1", "POST /orders"));
        assert_eq!(read.as_bytes(), print.as_bytes());
    }
}
