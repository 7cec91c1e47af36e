//! The same key at another place, or by somebody else.

use super::answered;
use crate::answer::Answer;
use crate::case::Case;
use crate::finding::{Finding, Found};
use crate::prober::{Intent, Prober};
use crate::wire::Ask;

/// Twice: two endpoints that number their effects for themselves may give the same number once.
const TRIALS: usize = 2;

pub(super) async fn other_endpoint(p: &Prober) -> Found {
    let case = Case::OtherEndpoint;
    let Some(other) = &p.other else {
        return Err(Finding::skipped("--other-url was not given"));
    };
    let there = |intent: &Intent| Ask {
        at: other,
        ..p.ask(intent)
    };
    // Is it there at all, and what does it answer to a key that nobody else has?
    let fresh = own_intent(p, &there(&p.intent()), "--other-url").await?;
    let mut same = None;
    for _ in 0..TRIALS {
        let intent = p.intent();
        let first = p.accepted(&p.ask(&intent)).await?;
        let response = p.send(&there(&intent)).await;
        let second = answered(p, case, "the other endpoint", response)?;
        if let Some(mark) = second
            .replay_mark()
            .filter(|_| fresh.replay_mark().is_none())
        {
            return Err(Finding::fail(format!(
                "the other endpoint answered as a replay ({mark}): {second}"
            )));
        }
        if !p.accepts(&second) {
            return match p.is_right(case, &second) {
                true => Ok(Finding::pass(format!(
                    "the other endpoint refused the key with {}",
                    second.status
                ))),
                false => Err(Finding::inconclusive(format!(
                    "the other endpoint answered {second}"
                ))),
            };
        }
        if !second.is_identical_to(&first) {
            return Ok(Finding::pass("the other endpoint answered for itself"));
        }
        if fresh.is_identical_to(&first) {
            return Err(Finding::inconclusive(format!(
                "both endpoints always answer {first}"
            )));
        }
        same = Some(second);
    }
    Err(match same {
        Some(answer) => Finding::fail(format!(
            "the other endpoint gave the first one's answer: {answer}"
        )),
        None => Finding::inconclusive("nothing was tried"),
    })
}

pub(super) async fn other_principal(p: &Prober) -> Found {
    let case = Case::OtherPrincipal;
    let Some(principal) = &p.other_headers else {
        return Err(Finding::skipped("--other-header was not given"));
    };
    let fresh = own_intent(p, &p.ask_as(principal, &p.intent()), "--other-header").await?;
    let intent = p.intent();
    let before = p.count().await?;
    let first = p.accepted(&p.ask(&intent)).await?;
    let response = p.send(&p.ask_as(principal, &intent)).await;
    let second = answered(p, case, "the other principal", response)?;
    if let Some(mark) = second
        .replay_mark()
        .filter(|_| fresh.replay_mark().is_none())
    {
        return Err(Finding::fail(format!(
            "the other principal was answered with a replay ({mark}): {second}"
        )));
    }
    if !p.accepts(&second) {
        return Err(match second.status {
            400 | 409 | 422 => Finding::advice(format!(
                "the other principal's key meets the first one's: {second}; that reveals that the key exists"
            )),
            _ => Finding::inconclusive(format!("the other principal was answered {second}")),
        });
    }
    if !second.is_of_the_effect_of(&first) {
        return Ok(Finding::pass("the other principal was answered for itself"));
    }
    if p.made_since(before).await? == Some(2) {
        return Ok(Finding::pass(
            "the other principal had an effect of its own",
        ));
    }
    let (one, two) = p.fresh_answers().await?;
    Err(if one.is_of_the_effect_of(two) {
        Finding::inconclusive(
            "answers to different intents look alike: give --count-url, or --id-pointer",
        )
    } else {
        Finding::fail(format!(
            "the other principal was given the first one's answer: {second}"
        ))
    })
}

async fn own_intent(p: &Prober, ask: &Ask<'_>, option: &str) -> Found<Answer> {
    match p.send(ask).await {
        Ok(answer) if p.accepts(&answer) => Ok(answer),
        Ok(answer) => Err(Finding::inconclusive(format!(
            "with {option} an intent of its own was not accepted but answered {answer}"
        ))),
        Err(why) => Err(Finding::inconclusive(format!(
            "with {option} an intent of its own got no answer: {why}"
        ))),
    }
}
