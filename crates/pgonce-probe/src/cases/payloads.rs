//! One key with two meanings.

use super::{ROUNDS, answered};
use crate::answer::Answer;
use crate::case::Case;
use crate::finding::{Finding, Found};
use crate::json::Object;
use crate::prober::{Intent, Prober};

pub(super) async fn changed(p: &Prober) -> Found {
    let case = Case::ChangedPayload;
    let (intent, other) = two_meanings(p)?;
    let before = p.count().await?;
    let first = p.accepted(&p.ask(&intent)).await?;
    let response = p.send(&p.ask(&other)).await;
    let second = answered(p, case, "the changed payload", response)?;
    if p.accepts(&second) && !p.is_allowed(case, &second) {
        return Err(Finding::fail(if second.is_of_the_effect_of(&first) {
            format!("the changed payload was given the first one's answer: {second}")
        } else {
            format!("the changed payload was accepted too: {second}")
        }));
    }
    let response = p.send_until_settled(&p.ask(&intent)).await;
    let again = answered(p, case, "the original, sent once more,", response)?;
    if !p.accepts(&again) || p.contradict(&first, &again) {
        return Err(Finding::fail(format!(
            "the original is no longer answered {first}, but {again}"
        )));
    }
    one_of_two(p.made_since(before).await?)?;
    refused(p, case, &second)
}

pub(super) async fn changed_in_flight(p: &Prober) -> Found {
    let case = Case::ChangedPayloadInFlight;
    let mut observed = None;
    for _ in 0..ROUNDS {
        let (intent, other) = two_meanings(p)?;
        let asks = [p.ask(&intent), p.ask(&other)];
        let before = p.count().await?;
        let mut answers = Vec::new();
        for response in p.race(&asks).await {
            answers.push(answered(p, case, "one of the two payloads", response)?);
        }
        // The one that was accepted; if nobody was, the first that is when asked again.
        let winner = match [p.accepts(&answers[0]), p.accepts(&answers[1])] {
            [true, true] => {
                return Err(Finding::fail(format!(
                    "both payloads were accepted: {} and {}",
                    answers[0], answers[1]
                )));
            }
            [false, true] => 1,
            [true, false] => 0,
            [false, false] => {
                let response = p.send_until_settled(&asks[0]).await;
                let late = answered(p, case, "the first payload, sent again,", response)?;
                usize::from(!p.accepts(&late))
            }
        };
        let response = p.send_until_settled(&asks[winner]).await;
        let again = answered(p, case, "the payload that won", response)?;
        if !p.accepts(&again) {
            return Err(Finding::fail(format!(
                "neither payload is accepted: {again}"
            )));
        }
        let response = p.send(&asks[1 - winner]).await;
        let loser = answered(p, case, "the payload that lost", response)?;
        if p.accepts(&loser) && !p.is_allowed(case, &loser) {
            return Err(Finding::fail(format!(
                "the payload that lost was accepted later: {loser}"
            )));
        }
        one_of_two(p.made_since(before).await?)?;
        observed = Some(refused(p, case, &loser)?);
    }
    observed.ok_or_else(|| Finding::inconclusive("no round was run"))
}

/// A fingerprint of some members only takes two requests for one.
pub(super) async fn changed_member(p: &Prober) -> Found {
    let case = Case::ChangedMember;
    let intent = p.intent();
    let changed = object(&intent)?.changed_in_one_place();
    if changed.is_empty() {
        return Err(Finding::skipped("the body has no member to change"));
    }
    let first = p.accepted(&p.ask(&intent)).await?;
    let mut last = None;
    for (place, body) in &changed {
        let other = Intent {
            key: intent.key.clone(),
            body: body.clone(),
        };
        let what = format!("a body that differs in {place}");
        let second = answered(p, case, &what, p.send(&p.ask(&other)).await)?;
        if p.accepts(&second) && !p.is_allowed(case, &second) {
            return Err(Finding::fail(if second.is_of_the_effect_of(&first) {
                format!("{what} was given the first one's answer: {second}")
            } else {
                format!("{what} was accepted too: {second}")
            }));
        }
        last = Some(refused(p, case, &second)?);
    }
    let last = last.ok_or_else(|| Finding::inconclusive("nothing was tried"))?;
    Ok(Finding {
        observed: format!(
            "{} places, each changed alone: {}",
            changed.len(),
            last.observed
        ),
        ..last
    })
}

/// The same request, as another serialiser writes it.
pub(super) async fn member_order(p: &Prober) -> Found {
    let case = Case::MemberOrder;
    let before = p.count().await?;
    let intent = p.intent();
    let rewritten = Intent {
        key: intent.key.clone(),
        body: object(&intent)?.rewritten(),
    };
    let first = p.accepted(&p.ask(&intent)).await?;
    let response = p.send_until_settled(&p.ask(&rewritten)).await;
    let second = answered(p, case, "the same object, written otherwise,", response)?;
    if p.accepts(&second) {
        let made = p.made_since(before).await?;
        return p.one_effect(&[first, second], made).await;
    }
    let observed = format!("the same object, written otherwise, is another request: {second}");
    match p.is_right(case, &second) {
        true => Ok(Finding::pass(observed)),
        false => Err(Finding::advice(observed)),
    }
}

fn object(intent: &Intent) -> Found<Object> {
    Object::read(&intent.body).ok_or_else(|| Finding::skipped("the body is no JSON object"))
}

/// Two intents that share a key, with different payloads.
fn two_meanings(p: &Prober) -> Found<(Intent, Intent)> {
    let intent = p.intent();
    let other = Intent {
        key: intent.key.clone(),
        body: p.changed()?,
    };
    if intent.body == other.body {
        return Err(Finding::skipped("--other-body is the same as --body"));
    }
    Ok((intent, other))
}

fn one_of_two(made: Option<i64>) -> Found<()> {
    match made {
        None | Some(1) => Ok(()),
        Some(n) => Err(Finding::fail(format!(
            "{n} effects were counted for one key with two payloads"
        ))),
    }
}

/// How the wrong payload was reported. An answer that names no effect needs no count to be believed.
fn refused(p: &Prober, case: Case, answer: &Answer) -> Found {
    let status = answer.status;
    if !p.is_right(case, answer) {
        return Err(Finding::advice(format!(
            "refused, but with {answer}; the draft says 422"
        )));
    }
    let observed = match status {
        422 => "refused with 422".to_owned(),
        _ => format!("refused with {status}; the draft says 422"),
    };
    let finding = Finding::pass(observed);
    Ok(if p.counts() { finding } else { finding.weak() })
}
