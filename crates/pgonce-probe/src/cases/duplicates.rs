//! The same request again, one after the other and all at once.

use tokio::time::{Instant, sleep_until};

use super::{ROUNDS, answered};
use crate::answer::Answer;
use crate::case::Case;
use crate::finding::{Finding, Found};
use crate::prober::{Intent, Prober};

pub(super) async fn different_keys(p: &Prober) -> Found {
    let before = p.count().await?;
    let one = p.accepted(&p.ask(&p.intent())).await?;
    let two = p.accepted(&p.ask(&p.intent())).await?;
    if let Some(mark) = one.replay_mark().or_else(|| two.replay_mark()) {
        return Err(Finding::fail(format!(
            "a fresh key was answered with a replay ({mark})"
        )));
    }
    let same = if p.varies() {
        "two keys with two payloads"
    } else {
        "two keys"
    };
    match p.made_since(before).await? {
        Some(2) => Ok(Finding::pass("two intents, two effects")),
        Some(0) => Err(Finding::fail(
            "two intents were accepted, and no effect was counted; does --count-url count these effects?",
        )),
        Some(1) if p.varies() => Err(Finding::fail(format!("{same} made one effect"))),
        Some(1) => Err(Finding::inconclusive(
            "two keys with one payload made one effect: put {{number}} or {{uuid}} into --body",
        )),
        Some(n) => Err(Finding::fail(format!(
            "two intents made {n} effects; or does somebody else use the API now?"
        ))),
        None if !one.is_of_the_effect_of(&two) => {
            Ok(Finding::pass("two intents, two answers").weak())
        }
        None if one.names_its_effect() && p.varies() => Err(Finding::fail(format!(
            "{same} were given one answer: {two}"
        ))),
        None => Err(Finding::inconclusive(format!(
            "{same} were answered alike ({two}): give --count-url, or --id-pointer"
        ))),
    }
}

pub(super) async fn sequential(p: &Prober) -> Found {
    let sample = p.sample().await?;
    let case = Case::SequentialDuplicate;
    let again = answered(p, case, "the duplicate", sample.again.clone())?;
    let made = match sample.made {
        Some((0, _)) => {
            return Err(Finding::fail(format!(
                "accepted ({}), and no effect was counted",
                sample.first
            )));
        }
        Some((_, more @ 1..)) => {
            return Err(Finding::fail(format!(
                "the duplicate made {more} more effects ({again})"
            )));
        }
        Some((first, more)) => Some(first + more),
        None => None,
    };
    if !p.accepts(&again) {
        if p.is_right(case, &again) {
            return Ok(Finding::pass(format!(
                "the duplicate was answered {}, which is allowed",
                again.status
            )));
        }
        return Err(Finding::fail(format!(
            "the duplicate was not given the first answer, but {again}"
        )));
    }
    p.one_effect(&[sample.first.clone(), again], made).await
}

/// What came of a race of one intent with itself.
struct Raced {
    intent: Intent,
    accepted: Vec<Answer>,
    /// How many were rejected, to be retried.
    busy: usize,
    before: Option<i64>,
}

/// The responses to the losers are judged where that is the question.
async fn race(p: &Prober, case: Case) -> Found<Raced> {
    let before = p.count().await?;
    let intent = p.intent();
    let asks = vec![p.ask(&intent); p.concurrency];
    let mut accepted = Vec::new();
    let mut busy = Vec::new();
    for response in p.race(&asks).await {
        if case != Case::ConcurrentDuplicates {
            accepted.extend(response.ok().filter(|answer| p.accepts(answer)));
            continue;
        }
        let answer = answered(p, case, "one of the duplicates", response)?;
        if p.accepts(&answer) && answer.status != 202 {
            accepted.push(answer);
        } else if p.is_right(case, &answer) || p.accepts(&answer) {
            busy.push(answer);
        } else {
            return Err(Finding::fail(format!(
                "one of the duplicates was answered {answer}"
            )));
        }
    }
    // Where nothing else is ever answered, 202 is the answer.
    let is_answer = |answer: &Answer| answer.status == 202 && p.accepts(answer);
    if accepted.is_empty() && busy.iter().all(is_answer) {
        accepted.append(&mut busy);
    }
    Ok(Raced {
        intent,
        accepted,
        busy: busy.len(),
        before,
    })
}

pub(super) async fn concurrent(p: &Prober) -> Found {
    let (mut accepted, mut busy) = (0, 0);
    let mut last = None;
    for _ in 0..ROUNDS {
        let mut raced = race(p, Case::ConcurrentDuplicates).await?;
        if raced.accepted.is_empty() {
            let response = p.send_until_settled(&p.ask(&raced.intent)).await;
            let answer = answered(
                p,
                Case::ConcurrentDuplicates,
                "the duplicate after the race",
                response,
            )?;
            if !p.accepts(&answer) {
                return Err(Finding::fail(format!(
                    "nobody won the race, and afterwards the answer is {answer}"
                )));
            }
            raced.accepted.push(answer);
        }
        accepted += raced.accepted.len();
        busy += raced.busy;
        let made = p.made_since(raced.before).await?;
        last = Some(p.one_effect(&raced.accepted, made).await?);
    }
    let Some(last) = last else {
        return Err(Finding::inconclusive("no round was run"));
    };
    Ok(Finding {
        observed: format!(
            "{ROUNDS} rounds of {}: {accepted} were given the answer, {busy} were rejected as busy; {} in each",
            p.concurrency, last.observed
        ),
        ..last
    })
}

pub(super) async fn after_race(p: &Prober) -> Found {
    let mut raced = race(p, Case::DuplicateAfterRace).await?;
    let response = p.send_until_settled(&p.ask(&raced.intent)).await;
    let late = answered(p, Case::DuplicateAfterRace, "the late duplicate", response)?;
    if !p.accepts(&late) {
        return Err(Finding::fail(format!(
            "the late duplicate was answered {late}"
        )));
    }
    if let Some(winner) = raced.accepted.first()
        && p.contradict(winner, &late)
    {
        return Err(Finding::fail(format!(
            "the race was answered {winner}, the late duplicate {late}"
        )));
    }
    raced.accepted.push(late);
    let made = p.made_since(raced.before).await?;
    p.one_effect(&raced.accepted, made).await
}

/// A key that is forgotten too early makes a late retry a second effect.
pub(super) async fn late(p: &Prober) -> Found {
    p.open().await?;
    let Some((intent, first)) = p.opening.get() else {
        return Err(Finding::inconclusive("there was no first request"));
    };
    sleep_until(Instant::from_std(first.asked) + p.late).await;
    let before = p.count().await?;
    let response = p.send_until_settled(&p.ask(intent)).await;
    let age = first.asked.elapsed().as_secs();
    let late = answered(p, Case::LateDuplicate, "the late duplicate", response)?;
    if let Some(more @ 1..) = p.made_since(before).await? {
        return Err(Finding::fail(format!(
            "after {age} s the duplicate made {more} more effects ({late})"
        )));
    }
    if !p.accepts(&late) {
        let observed = format!("after {age} s the duplicate was answered {late}");
        return match p.is_right(Case::LateDuplicate, &late) {
            true => Ok(Finding::pass(observed)),
            false => Err(Finding::advice(observed)),
        };
    }
    if p.contradict(first, &late) {
        return Err(Finding::fail(format!(
            "after {age} s the duplicate was not given the first answer, {first}, but {late}"
        )));
    }
    let finding = Finding::pass(format!("after {age} s it is still the first answer"));
    Ok(if p.counts() { finding } else { finding.weak() })
}
