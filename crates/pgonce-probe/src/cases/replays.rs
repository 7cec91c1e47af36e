//! What a replay looks like beside the first answer.

use std::time::Duration;

use http::HeaderName;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, DATE, ETAG, LOCATION, SET_COOKIE};
use tokio::time::{Instant, sleep_until};

use super::answered;
use crate::answer::Answer;
use crate::case::Case;
use crate::finding::{Finding, Found};
use crate::prober::Prober;

const KEPT: [HeaderName; 4] = [CONTENT_TYPE, CONTENT_ENCODING, LOCATION, ETAG];

/// The first answer, and what the duplicate was given instead of a second run.
async fn pair(p: &Prober) -> Found<(&Answer, &Answer)> {
    let sample = p.sample().await?;
    match &sample.again {
        Ok(again) if p.accepts(again) => Ok((&sample.first, again)),
        Ok(again) => Err(Finding::inconclusive(format!(
            "there is no replay to look at: the duplicate was answered {again}"
        ))),
        Err(why) => Err(Finding::inconclusive(format!(
            "there is no replay to look at: {why}"
        ))),
    }
}

pub(super) async fn answer(p: &Prober) -> Found {
    let (first, again) = pair(p).await?;
    if first.status != again.status {
        return Err(Finding::fail(format!(
            "the status was {}, then {}",
            first.status, again.status
        )));
    }
    if first.body != again.body {
        return Err(Finding::fail(format!(
            "the body had {} bytes, then other {} bytes: {first}, then {again}",
            first.body.len(),
            again.body.len()
        )));
    }
    Ok(Finding::pass(format!(
        "{} and the same {} bytes",
        again.status,
        again.body.len()
    )))
}

pub(super) async fn headers(p: &Prober) -> Found {
    let (first, again) = pair(p).await?;
    let shown = |answer: &Answer, name: &HeaderName| match answer.headers.get(name) {
        Some(value) => String::from_utf8_lossy(value.as_bytes()).into_owned(),
        None => "none".to_owned(),
    };
    let there: Vec<_> = KEPT
        .iter()
        .filter(|name| first.headers.contains_key(*name) || again.headers.contains_key(*name))
        .collect();
    for name in &there {
        let all = |answer: &Answer| {
            answer
                .headers
                .get_all(*name)
                .iter()
                .cloned()
                .collect::<Vec<_>>()
        };
        if all(first) != all(again) {
            return Err(Finding::fail(format!(
                "{name} was {}, then {}",
                shown(first, name),
                shown(again, name)
            )));
        }
    }
    let names: Vec<_> = there.iter().map(|name| name.as_str()).collect();
    Ok(Finding::pass(match names.is_empty() {
        true => "the first answer has none of them, nor has the replay".to_owned(),
        false => format!("the same {}", names.join(", ")),
    }))
}

pub(super) async fn cookies(p: &Prober) -> Found {
    let (first, again) = pair(p).await?;
    let cookies = |answer: &Answer| {
        answer
            .headers
            .get_all(SET_COOKIE)
            .iter()
            .cloned()
            .collect::<Vec<_>>()
    };
    let (given, replayed) = (cookies(first), cookies(again));
    let stored: Vec<_> = replayed
        .iter()
        .filter(|cookie| given.contains(cookie))
        .collect();
    if stored.is_empty() {
        return Ok(Finding::pass(match replayed.is_empty() {
            true => "no cookie in the replay",
            false => "the replay has a fresh cookie",
        }));
    }
    // A cookie that everybody is always given is no secret.
    let (other, _) = p.fresh_answers().await?;
    let usual = cookies(other);
    if stored.iter().all(|cookie| usual.contains(cookie)) {
        return Ok(Finding::pass(
            "the replay has the cookie that all answers have",
        ));
    }
    Err(Finding::fail(
        "the replay carries the cookie that the first answer set",
    ))
}

pub(super) async fn date(p: &Prober) -> Found {
    let sample = p.sample().await?;
    pair(p).await?;
    let Some(then) = sample.first.headers.get(DATE) else {
        return Err(Finding::skipped("the answers have no Date"));
    };
    // Dates count in seconds.
    sleep_until(Instant::from_std(sample.first.asked) + Duration::from_secs(2)).await;
    let response = p.send(&p.ask(&sample.intent)).await;
    let late = answered(p, Case::ReplayDate, "a late duplicate", response)?;
    match late.headers.get(DATE) {
        Some(now) if now == then => Err(Finding::advice(
            "the replay has the Date of the first answer, two seconds later",
        )),
        Some(_) => Ok(Finding::pass("the replay has a Date of its own")),
        None => Err(Finding::advice(
            "the first answer has a Date, the replay has none",
        )),
    }
}

pub(super) async fn marked(p: &Prober) -> Found {
    let (first, again) = pair(p).await?;
    match (first.replay_mark(), again.replay_mark()) {
        (None, Some(mark)) => Ok(Finding::pass(mark)),
        (Some(mark), _) => Err(Finding::advice(format!(
            "the first answer is marked as a replay: {mark}"
        ))),
        (None, None) => Err(Finding::advice(
            "no header distinguishes a replay from a first answer",
        )),
    }
}
