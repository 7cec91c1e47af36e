//! Clients that go away, and come back.

use std::time::Duration;

use super::answered;
use crate::case::Case;
use crate::finding::{Finding, Found};
use crate::prober::Prober;

/// Into how many parts the time of a request is divided by cuts.
const MOMENTS: u32 = 8;

pub(super) async fn after_headers(p: &Prober) -> Found {
    with_body(p)?;
    retried(p, Case::CutAfterHeaders, |_| 0, Duration::ZERO).await
}

pub(super) async fn mid_body(p: &Prober) -> Found {
    with_body(p)?;
    retried(p, Case::CutMidBody, |whole| whole / 2, Duration::ZERO).await
}

/// Cut at moments spread over the work: one sample of how long it takes may be far off on a busy machine, and the
/// effect comes at a moment that nobody outside knows.
pub(super) async fn before_answer(p: &Prober) -> Found {
    let usual = p.sample().await?.first.took;
    let mut last = None;
    for part in 0..MOMENTS {
        let after = usual * part / MOMENTS;
        last = Some(retried(p, Case::CutBeforeAnswer, |whole| whole, after).await?);
    }
    match last {
        Some(_) if p.counts() => Ok(Finding::pass("cut at eight moments: one effect each")),
        _ => Err(Finding::inconclusive(
            "the retries were answered alike; whether a request that was cut had an effect of its own \
             cannot be seen without --count-url",
        )),
    }
}

fn with_body(p: &Prober) -> Found<()> {
    match p.intent().body.is_empty() {
        true => Err(Finding::skipped(
            "the request has no body: see cut-before-answer",
        )),
        false => Ok(()),
    }
}

/// Sends so much of an intent's body, goes away, comes back and asks twice more.
async fn retried(p: &Prober, case: Case, part: impl Fn(usize) -> usize, after: Duration) -> Found {
    let before = p.count().await?;
    let intent = p.intent();
    let ask = p.ask(&intent);
    p.cut(&ask, part(intent.body.len()), after)
        .await
        .map_err(Finding::inconclusive)?;
    let mut answers = Vec::new();
    for what in ["the retry", "the second retry"] {
        let answer = answered(p, case, what, p.send_until_settled(&ask).await)?;
        if !p.accepts(&answer) {
            return Err(Finding::fail(match answer.is_busy() {
                true => format!(
                    "the key is stuck: {:?} later {what} was still answered {answer}",
                    p.busy_timeout
                ),
                false => format!("{what} was answered {answer}"),
            }));
        }
        answers.push(answer);
    }
    if p.contradict(&answers[0], &answers[1]) {
        return Err(Finding::fail(format!(
            "the retries were answered {} and {}",
            answers[0], answers[1]
        )));
    }
    match p.made_since(before).await? {
        Some(1) => Ok(Finding::pass("the retry was accepted; one effect")),
        Some(0) => Err(Finding::fail(format!(
            "the retry was accepted ({}), and no effect was counted",
            answers[0]
        ))),
        Some(n) => Err(Finding::fail(format!(
            "{n} effects were counted: the request that was cut, and its retry"
        ))),
        None => Ok(Finding::pass("the retry was accepted, and replayed").weak()),
    }
}
