//! An answer from the store.

use axum::body::Body;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use pgonce::driver::Driver;
use pgonce::{Ack, Failure};

use crate::headers::REPLAYED;
use crate::layer::RouteState;
use crate::stored::{Stored, not_kept};
use crate::{Policy, Problem};

/// How an intent had ended.
pub(crate) enum Replay {
    Done(Ack),
    Refused(Failure),
}

/// The stored answer, if the caller may still see it.
pub(crate) async fn replayed<D: Driver>(
    state: &RouteState<D>,
    head: &Parts,
    replay: Replay,
) -> Result<Response, Problem> {
    if let Some(hook) = &state.policy.reauthorise
        && let Err(refused) = (hook.0)(head.clone()).await
    {
        return Ok(*refused);
    }
    render(&state.policy, &replay)
}

fn render(policy: &Policy, replay: &Replay) -> Result<Response, Problem> {
    let (value, refused) = match replay {
        Replay::Done(ack) => (ack.json(), None),
        Replay::Refused(failure) => (failure.answer(), Some(failure)),
    };
    if let Some(stored) = value.and_then(Stored::read) {
        return stored.replay(policy, refused).ok_or_else(|| {
            tracing::error!("a stored answer cannot be read; was it changed by hand?");
            Problem::ours(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "it happened once, but its stored answer cannot be read",
            )
        });
    }
    // Another entry point to the scope finished it, or an operator.
    let mut response = match (replay, value) {
        (Replay::Refused(failure), _) => {
            Problem::refused(failure).into_response_at(&policy.errors_at)
        }
        (Replay::Done(_), Some(value)) => {
            let mut response = Response::new(Body::from(value.to_string()));
            let kind = HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        (Replay::Done(ack), None) => {
            let mut problem = not_kept();
            if let Some((kind, id)) = ack.reference() {
                problem = problem.with("made", serde_json::json!({ "type": kind, "id": id }));
            }
            problem.into_response_at(&policy.errors_at)
        }
    };
    let yes = HeaderValue::from_static("true");
    response.headers_mut().insert(REPLAYED, yes);
    Ok(response)
}
