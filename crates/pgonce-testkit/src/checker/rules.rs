use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::{Effect, Intent, Kind, verdict::Report};
use crate::history::Attempted;

/// What must hold for each intent by itself.
pub(super) fn of_one_intent(intent: &Intent, report: &mut Report<'_>) {
    let succeeded: Vec<_> = intent
        .attempts
        .iter()
        .filter(|a| a.answer().is_some())
        .collect();
    let effects = intent.effects.len();
    if effects > 1 {
        report(
            Kind::Duplicate,
            format!("{effects} effects, expected at most one"),
        );
    }
    if intent.attempts.is_empty() {
        report(
            Kind::Phantom,
            "took effect though nobody asked for it".to_owned(),
        );
        return;
    }
    if effects == 0 && !succeeded.is_empty() {
        let what = format!(
            "{} got success, and there is no effect",
            attempts(&succeeded)
        );
        report(Kind::Lost, what);
    }
    if effects > 0 && intent.attempts.iter().all(Attempted::failed) {
        let what = "took effect though every attempt was answered that it failed".to_owned();
        report(Kind::DoneThoughFailed, what);
    }
    same_answer(&succeeded, report);
    right_payload(intent, &succeeded, report);
    right_amount(intent, report);
}

fn same_answer(succeeded: &[&Attempted], report: &mut Report<'_>) {
    let Some(first) = succeeded.first() else {
        return;
    };
    let other = succeeded
        .iter()
        .find(|attempt| attempt.answer() != first.answer());
    if let Some(other) = other {
        let what = format!(
            "attempt {} got another answer than attempt {}",
            other.attempt, first.attempt
        );
        report(Kind::DifferentAnswers, what);
    }
}

fn right_payload(intent: &Intent, succeeded: &[&Attempted], report: &mut Report<'_>) {
    if let Some(first) = succeeded.first()
        && let Some(other) = succeeded.iter().find(|a| a.payload != first.payload)
    {
        let what = format!(
            "attempts {} and {} asked for different things and both got success",
            first.attempt, other.attempt
        );
        report(Kind::ConflictAnswered, what);
    }
    for effect in &intent.effects {
        let Some(payload) = &effect.payload else {
            continue;
        };
        // Of those who asked for just this, somebody must be entitled to it.
        let mut askers = intent.attempts.iter().filter(|a| a.payload == *payload);
        let entitled = match succeeded.is_empty() {
            true => askers.any(|attempt| !attempt.failed()),
            false => askers.any(|attempt| attempt.answer().is_some()),
        };
        if !entitled {
            let what = format!("took effect with {payload}, which was not acknowledged");
            report(Kind::WrongPayload, what);
        }
    }
}

fn right_amount(intent: &Intent, report: &mut Report<'_>) {
    let rightful = rightful_amounts(intent);
    for amount in intent.effects.iter().filter_map(|effect| effect.amount) {
        if !rightful.contains(&amount) {
            let what =
                format!("took effect with the amount {amount}, expected one of {rightful:?}");
            report(Kind::WrongAmount, what);
        }
    }
}

/// The acknowledged amount; where nothing was acknowledged, all that may have been meant.
fn rightful_amounts(intent: &Intent) -> Vec<i64> {
    let acknowledged = intent.attempts.iter().find(|a| a.answer().is_some());
    let in_doubt = intent.attempts.iter().filter(|a| !a.failed());
    match acknowledged {
        Some(attempt) => asked_amount(&attempt.payload).into_iter().collect(),
        None => in_doubt.filter_map(|a| asked_amount(&a.payload)).collect(),
    }
}

fn asked_amount(payload: &Value) -> Option<i64> {
    payload.get("amount")?.as_i64()
}

/// Each intent that took effect counts once, with what was asked for.
pub(super) fn sum_is_preserved(
    intents: &BTreeMap<String, Intent>,
    effects: &[Effect],
    report: &mut Report<'_>,
) {
    let amounts: Vec<i128> = effects
        .iter()
        .filter_map(|e| e.amount)
        .map(i128::from)
        .collect();
    if amounts.is_empty() {
        return;
    }
    let expected: i128 = intents
        .values()
        .filter_map(|intent| {
            let happened = intent.effects.iter().find_map(|effect| effect.amount)?;
            let rightful = rightful_amounts(intent);
            let meant = rightful.iter().find(|amount| **amount == happened);
            meant.or(rightful.first()).copied()
        })
        .map(i128::from)
        .sum();
    let sum: i128 = amounts.iter().sum();
    if sum != expected {
        let what = format!("the effects sum up to {sum}, expected {expected}");
        report(Kind::SumChanged, what);
    }
}

/// The effects are in the order in which they took place.
pub(super) fn order_is_preserved(effects: &[Effect], report: &mut Report<'_>) {
    let mut last: HashMap<&str, &Effect> = HashMap::new();
    for effect in effects {
        let (Some(subject), Some(sequence)) = (&effect.subject, effect.sequence) else {
            continue;
        };
        if let Some(before) = last.insert(subject, effect)
            && before.sequence >= Some(sequence)
        {
            let what = format!(
                "subject {subject}: {} (sequence {sequence}) took effect after {} (sequence {})",
                effect.intent,
                before.intent,
                before.sequence.unwrap_or_default()
            );
            report(Kind::OutOfOrder, what);
        }
    }
}

fn attempts(all: &[&Attempted]) -> String {
    match all {
        [one] => format!("attempt {} was", one.attempt),
        [first, ..] => format!("attempt {} and {} more were", first.attempt, all.len() - 1),
        [] => String::new(),
    }
}
