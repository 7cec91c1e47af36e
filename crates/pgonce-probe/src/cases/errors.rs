//! How errors are reported.

use http::header::{CONTENT_TYPE, RETRY_AFTER};

use super::answered;
use crate::case::Case;
use crate::finding::{Finding, Found};
use crate::json::Object;
use crate::prober::{Intent, Prober};

pub(super) async fn failed_validation(p: &Prober) -> Found {
    let case = Case::FailedValidation;
    let intent = p.intent();
    let invalid = match &p.invalid_body {
        Some(body) => body.fill(0, &intent.key),
        // Half a document is none.
        None if serde_json::from_slice::<serde_json::Value>(&intent.body)
            .is_ok_and(|d| d.is_object()) =>
        {
            intent.body.slice(..intent.body.len() / 2)
        }
        None => {
            return Err(Finding::skipped(
                "the body is no JSON object, and --invalid-body was not given",
            ));
        }
    };
    let broken = Intent {
        key: intent.key.clone(),
        body: invalid,
    };
    let first = match p.send(&p.ask(&broken)).await {
        Ok(answer) if answer.is_refusal() => answer,
        Ok(answer) => {
            return Err(Finding::inconclusive(format!(
                "the invalid body was not refused but answered {answer}: give --invalid-body"
            )));
        }
        Err(why) => {
            return Err(Finding::inconclusive(format!(
                "the invalid body got no answer: {why}"
            )));
        }
    };
    let response = p.send_until_settled(&p.ask(&intent)).await;
    let second = answered(p, case, "the corrected request", response)?;
    if p.accepts(&second) {
        return Ok(Finding::pass(format!(
            "{}, then {}",
            first.status, second.status
        )));
    }
    Err(Finding::advice(format!(
        "an invalid request used the key up: the corrected one was answered {second}"
    )))
}

/// A handler that raises an exception after it took the key must give it back, or keep an answer.
pub(super) async fn key_after_error(p: &Prober) -> Found {
    let Some((intent, first)) = failing(p).await? else {
        return Err(Finding::skipped(
            "no body that was tried made the API fail: give --error-body",
        ));
    };
    match p.send_until_settled(&p.ask(&intent)).await {
        Ok(answer) if matches!(answer.status, 409 | 425) => Err(Finding::fail(format!(
            "the key is stuck: {:?} after {first} the same request was still answered {answer}",
            p.busy_timeout
        ))),
        Ok(answer) => Ok(Finding::pass(format!("{first}, then {}", answer.status))),
        Err(why) => Err(Finding::inconclusive(format!(
            "after {first} the same request got no answer: {why}"
        ))),
    }
}

/// A request on which the API fails, and how.
async fn failing(p: &Prober) -> Found<Option<(Intent, String)>> {
    let plain = p.intent();
    let bodies = match &p.error_body {
        Some(body) => vec![body.fill(0, &plain.key)],
        None => Object::read(&plain.body).map_or_else(Vec::new, |object| object.of_wrong_types()),
    };
    for body in bodies {
        let intent = Intent {
            key: p.token(),
            body,
        };
        match p.send(&p.ask(&intent)).await {
            Ok(answer) if answer.is_server_error() => {
                return Ok(Some((intent, answer.status.to_string())));
            }
            Err(_) => return Ok(Some((intent, "no answer".to_owned()))),
            Ok(answer) if p.error_body.is_some() => {
                return Err(Finding::inconclusive(format!(
                    "the body of --error-body was answered {answer}, not 5xx"
                )));
            }
            Ok(_) => {}
        }
    }
    Ok(None)
}

pub(super) async fn problem_documents(p: &Prober) -> Found {
    let mut errors = Vec::new();
    let keyless = p.send(&p.ask_with(&[], p.intent().body)).await;
    errors.extend(keyless.ok().map(|answer| ("a missing key", answer)));
    if let Ok(changed) = p.changed() {
        let sample = p.sample().await?;
        let other = Intent {
            key: sample.intent.key.clone(),
            body: changed,
        };
        let reused = p.send(&p.ask(&other)).await;
        errors.extend(reused.ok().map(|answer| ("a changed payload", answer)));
    }
    errors.retain(|(_, answer)| answer.is_refusal());
    if errors.is_empty() {
        return Err(Finding::skipped(
            "neither a missing key nor a changed payload was refused",
        ));
    }
    for (what, answer) in &errors {
        let kind = answer.header(CONTENT_TYPE).unwrap_or("nothing");
        if !kind
            .to_ascii_lowercase()
            .starts_with("application/problem+json")
        {
            return Err(Finding::advice(format!(
                "{what} is answered with {} as {kind}",
                answer.status
            )));
        }
    }
    let observed: Vec<_> = errors
        .iter()
        .map(|(what, answer)| format!("{} for {what}", answer.status))
        .collect();
    Ok(Finding::pass(format!(
        "problem documents: {}",
        observed.join(", ")
    )))
}

pub(super) async fn retry_after(p: &Prober) -> Found {
    let intent = p.intent();
    let asks = vec![p.ask(&intent); p.concurrency];
    let response = p.race(&asks).await;
    let busy: Vec<_> = response
        .into_iter()
        .flatten()
        .filter(|answer| answer.status == 409)
        .collect();
    if busy.is_empty() {
        return Err(Finding::skipped("no duplicate got 409"));
    }
    let silent = busy
        .iter()
        .filter(|answer| !answer.headers.contains_key(RETRY_AFTER))
        .count();
    match silent {
        0 => Ok(Finding::pass(format!(
            "all {} answers with 409 say when",
            busy.len()
        ))),
        n => Err(Finding::advice(format!(
            "{n} of {} answers with 409 do not say when to come back",
            busy.len()
        ))),
    }
}
