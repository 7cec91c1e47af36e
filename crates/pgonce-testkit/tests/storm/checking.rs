//! The checker passes what is right and finds what is not.

use pgonce_testkit::{
    History, Outcome,
    checker::{self, Coverage, Effect, Kind},
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A system that is right, as it looks from outside.
#[derive(Debug, Clone)]
struct Run {
    /// For each intent: which attempt did the work, if one did, and what the others get.
    intents: Vec<(Option<usize>, Vec<Reply>)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Reply {
    /// Success with the stored answer if there is one, else that it failed.
    Truth,
    Busy,
    Nothing,
    NeverReturns,
    /// It asked for something else, and was turned down.
    Conflict,
}

fn runs() -> impl Strategy<Value = Run> {
    let reply = prop_oneof![
        4 => Just(Reply::Truth),
        1 => Just(Reply::Busy),
        2 => Just(Reply::Nothing),
        1 => Just(Reply::NeverReturns),
        1 => Just(Reply::Conflict),
    ];
    let attempts = prop::collection::vec(reply, 1..6);
    let intent = attempts.prop_flat_map(|attempts| {
        let doers: Vec<_> = (0..attempts.len())
            .filter(|index| !matches!(attempts[*index], Reply::Busy | Reply::Conflict))
            .collect();
        let doer = match doers.is_empty() {
            true => Just(None).boxed(),
            false => prop::option::weighted(0.8, prop::sample::select(doers)).boxed(),
        };
        (doer, Just(attempts))
    });
    prop::collection::vec(intent, 1..20).prop_map(|intents| Run { intents })
}

fn payload(number: usize) -> Value {
    json!({ "amount": number })
}

fn name(number: usize) -> String {
    format!("intent-{number}")
}

fn play(run: &Run) -> (History, Vec<Effect>) {
    let history = History::new();
    let mut effects = Vec::new();
    for (number, (doer, attempts)) in run.intents.iter().enumerate() {
        for (index, reply) in attempts.iter().enumerate() {
            let asked = match reply {
                Reply::Conflict => json!({ "amount": -1 }),
                _ => payload(number),
            };
            let attempt = history.invoke(name(number), asked);
            let done = doer.is_some_and(|doer| doer <= index);
            match reply {
                Reply::Truth if done => history.outcome(attempt, Outcome::Success(json!([number]))),
                Reply::Truth => history.outcome(attempt, Outcome::Failed("rolled back".into())),
                Reply::Busy => history.outcome(attempt, Outcome::Failed("busy".into())),
                Reply::Conflict => history.outcome(attempt, Outcome::Failed("conflict".into())),
                Reply::Nothing => history.outcome(attempt, Outcome::Unknown("cut".into())),
                Reply::NeverReturns => {}
            }
        }
        if doer.is_some() {
            let mut effect = Effect::of(name(number));
            effect.payload = Some(payload(number));
            effect.amount = i64::try_from(number).ok();
            effect.subject = Some(format!("subject-{}", number % 3));
            effect.sequence = i64::try_from(number).ok();
            effects.push(effect);
        }
    }
    (history, effects)
}

/// Somebody of the run got success.
fn acknowledged(run: &Run) -> Option<usize> {
    run.intents.iter().position(|(doer, attempts)| {
        doer.is_some_and(|doer| attempts[doer..].contains(&Reply::Truth))
    })
}

proptest! {
    #[test]
    fn a_right_system_passes(run in runs()) {
        let (history, effects) = play(&run);
        let verdict = checker::check(&history, &effects);
        prop_assert!(verdict.passed(), "{}", verdict);
        prop_assert_eq!(verdict.effects, effects.len());
    }

    #[test]
    fn a_second_effect_is_found(run in runs(), which: prop::sample::Index) {
        let (history, mut effects) = play(&run);
        prop_assume!(!effects.is_empty());
        let again = effects[which.index(effects.len())].clone();
        effects.push(again.clone());
        let verdict = checker::check(&history, &effects);
        let found = verdict.violations.iter().find(|v| v.kind == Kind::Duplicate);
        prop_assert_eq!(&found.unwrap().intent, &again.intent);
        prop_assert!(verdict.has(Kind::OutOfOrder), "{}", verdict);
        prop_assert!(verdict.has(Kind::SumChanged) || again.amount == Some(0), "{}", verdict);
    }

    #[test]
    fn a_lost_effect_is_found(run in runs()) {
        let (history, mut effects) = play(&run);
        let Some(number) = acknowledged(&run) else { return Ok(()) };
        effects.retain(|effect| effect.intent != name(number));
        let verdict = checker::check(&history, &effects);
        let kinds: Vec<_> = verdict.violations.iter().map(|v| v.kind).collect();
        prop_assert_eq!(kinds, [Kind::Lost]);
        prop_assert!(verdict.to_string().contains(&name(number)));
    }

    #[test]
    fn a_different_answer_is_found(run in runs()) {
        let (history, effects) = play(&run);
        let Some(number) = acknowledged(&run) else { return Ok(()) };
        let attempt = history.invoke(name(number), payload(number));
        history.outcome(attempt, Outcome::Success(json!("another")));
        let verdict = checker::check(&history, &effects);
        prop_assert_eq!(verdict.violations.len(), 1);
        prop_assert_eq!(verdict.violations[0].kind, Kind::DifferentAnswers);
    }

    #[test]
    fn an_effect_that_nobody_asked_for_is_found(run in runs()) {
        let (history, mut effects) = play(&run);
        effects.push(Effect::of("nobody's"));
        let verdict = checker::check(&history, &effects);
        prop_assert_eq!(verdict.violations.len(), 1);
        prop_assert_eq!(verdict.violations[0].kind, Kind::Phantom);
        prop_assert_eq!(&verdict.violations[0].intent, "nobody's");
    }

    #[test]
    fn a_history_survives_being_written_down(run in runs()) {
        let (history, effects) = play(&run);
        let again = History::read(history.to_json_lines().as_bytes()).unwrap();
        prop_assert_eq!(again.entries(), history.entries());
        prop_assert_eq!(checker::check(&again, &effects), checker::check(&history, &effects));
    }
}

fn history(outcome: &[(Value, Option<Outcome>)]) -> History {
    let history = History::new();
    for (payload, outcome) in outcome {
        let attempt = history.invoke("a", payload.clone());
        if let Some(outcome) = outcome {
            history.outcome(attempt, outcome.clone());
        }
    }
    history
}

fn kinds(history: &History, effects: &[Effect]) -> Vec<Kind> {
    let verdict = checker::check(history, effects);
    verdict
        .violations
        .iter()
        .map(|violation| violation.kind)
        .collect()
}

fn effect_with(payload: Value) -> Effect {
    let mut effect = Effect::of("a");
    effect.payload = Some(payload);
    effect
}

#[test]
fn an_effect_though_every_attempt_failed_is_found() {
    let failed = || Some(Outcome::Failed("rolled back".into()));
    let all_failed = history(&[(json!(1), failed()), (json!(1), failed())]);
    assert_eq!(
        kinds(&all_failed, &[Effect::of("a")]),
        [Kind::DoneThoughFailed]
    );
    let one_unknown = history(&[(json!(1), failed()), (json!(1), None)]);
    assert_eq!(kinds(&one_unknown, &[Effect::of("a")]), []);
    assert_eq!(kinds(&one_unknown, &[]), []);
}

#[test]
fn a_conflicting_payload_that_took_effect_or_was_answered_is_found() {
    let success = || Some(Outcome::Success(json!("done")));
    let turned_down = history(&[
        (json!(1), success()),
        (json!(2), Some(Outcome::Failed("conflict".into()))),
    ]);
    assert_eq!(kinds(&turned_down, &[effect_with(json!(1))]), []);
    assert_eq!(
        kinds(&turned_down, &[effect_with(json!(2))]),
        [Kind::WrongPayload]
    );
    let answered = history(&[(json!(1), success()), (json!(2), success())]);
    assert_eq!(
        kinds(&answered, &[effect_with(json!(1))]),
        [Kind::ConflictAnswered]
    );
    let unknown = history(&[(json!(1), success()), (json!(2), None)]);
    assert_eq!(
        kinds(&unknown, &[effect_with(json!(2))]),
        [Kind::WrongPayload]
    );
}

#[test]
fn a_wrong_amount_and_a_wrong_sum_are_found() {
    let asked = history(&[(json!({"amount": 5}), Some(Outcome::Success(json!(1))))]);
    let mut effect = Effect::of("a");
    effect.amount = Some(5);
    assert_eq!(kinds(&asked, std::slice::from_ref(&effect)), []);
    effect.amount = Some(6);
    assert_eq!(
        kinds(&asked, &[effect]),
        [Kind::WrongAmount, Kind::SumChanged]
    );
}

#[test]
fn a_run_that_hardly_did_anything_fails() {
    let unknown = Some(Outcome::Unknown("cut".into()));
    let few = history(&[
        (json!(1), unknown),
        (json!(1), Some(Outcome::Success(json!(1)))),
    ]);
    few.saw("replay");
    let effects = [Effect::of("a")];
    let met = Coverage::new()
        .require("replay", 1)
        .require("duplicate", 1)
        .require("success after unknown", 1);
    assert!(checker::check_covering(&few, &effects, &met).passed());
    let verdict = checker::check_covering(&few, &effects, &met.require("replay", 10));
    let outcome = verdict.to_string();
    assert!(verdict.has(Kind::TooLittleCovered), "{outcome}");
    assert!(
        outcome.contains("\"replay\" was met 1 times, required are 10"),
        "{outcome}"
    );
}

#[test]
fn a_verdict_shows_the_intents_part_of_the_history() {
    let asked = history(&[
        (
            json!({"amount": 5}),
            Some(Outcome::Unknown("connection lost".into())),
        ),
        (
            json!({"amount": 5}),
            Some(Outcome::Success(json!({"id": 2}))),
        ),
    ]);
    let twice = checker::check(&asked, &[Effect::of("a"), Effect::of("a")]).to_string();
    for expected in [
        "BROKEN, 1 violation: 1 intents, 2 attempts, 2 effects",
        "1. a: 2 effects, expected at most one (Duplicate)",
        "attempt 0 asked for {\"amount\":5}",
        "unknown: connection lost",
        "got {\"id\":2}",
        "effect {\"intent\":\"a\"}",
    ] {
        assert!(twice.contains(expected), "{expected:?} in\n{twice}");
    }
}

#[test]
fn a_history_in_a_file_is_there_line_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.jsonl");
    let history = History::in_file(&path).unwrap();
    let attempt = history.invoke("a", json!({}));
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!(kept, history.to_json_lines());
    assert!(
        kept.contains(r#""what":"invoke","intent":"a","attempt":0"#),
        "{kept}"
    );
    history.outcome(attempt, Outcome::Unknown("cut".into()));
    history.written().unwrap();
    let again = History::read(std::fs::read(&path).unwrap().as_slice()).unwrap();
    assert_eq!(again.entries(), history.entries());
    assert_eq!(again.invoke("b", json!({})), 1, "numbers go on");
}
