//! Every planted fault is found, by the case that is there for it, and nothing else is blamed.

use futures_util::stream::{self, StreamExt as _};
use not_idempotent::Fault;

use crate::fixture::{names, probe_all, serve};

/// The fault, the cases that must fail, and those that must give advice.
type Expected = (Fault, &'static [&'static str], &'static [&'static str]);

const FOUND: [Expected; 30] = [
    (Fault::NoDedup, &["sequential-duplicate"], &[]),
    (Fault::CheckThenAct, &["concurrent-duplicates"], &[]),
    (
        Fault::ErrorInFlight,
        &["concurrent-duplicates", "cut-before-answer"],
        &[],
    ),
    (Fault::DedupsEverything, &["different-keys"], &[]),
    (Fault::DoesNothing, &["different-keys"], &[]),
    (
        Fault::IgnoresPayload,
        &[
            "changed-payload",
            "changed-payload-in-flight",
            "changed-member",
        ],
        &[],
    ),
    (
        Fault::IgnoresPayloadInFlight,
        &["changed-payload-in-flight"],
        &[],
    ),
    (Fault::SharesEndpoints, &["other-endpoint"], &[]),
    (Fault::SharesPrincipals, &["other-principal"], &[]),
    (Fault::ForgetsOnDisconnect, &["cut-before-answer"], &[]),
    (Fault::StuckOnDisconnect, &["cut-before-answer"], &[]),
    (Fault::LosesBody, &["replay-answer"], &[]),
    (Fault::LosesHeaders, &["replay-headers"], &[]),
    (
        Fault::ReplaysAllHeaders,
        &["replay-cookies"],
        &["replay-date"],
    ),
    (Fault::CutsKeys, &["long-key"], &[]),
    (Fault::IgnoresCase, &["uppercase-keys"], &[]),
    (Fault::EmptyIsAKey, &["empty-key"], &[]),
    (Fault::FailsOnOddKeys, &["odd-keys"], &[]),
    (Fault::TwoForms, &[], &["key-forms"]),
    (Fault::OptionalKey, &[], &["missing-key"]),
    (Fault::FirstOfTwoKeys, &[], &["two-keys"]),
    (Fault::Unmarked, &[], &["replay-marked"]),
    (Fault::PlainErrors, &[], &["problem-documents"]),
    (Fault::NoRetryAfter, &[], &["retry-after"]),
    (Fault::BurnsKeys, &[], &["failed-validation"]),
    (Fault::ComparesBytes, &[], &["member-order"]),
    (Fault::ComparesAmounts, &["changed-member"], &[]),
    (Fault::StuckAfterException, &["key-after-error"], &[]),
    (Fault::ForgetsEarly, &["late-duplicate"], &[]),
    // Each of these sends a third request, though it is about something else.
    (
        Fault::ReplaysOnce,
        &["changed-payload-in-flight", "replay-date"],
        &[],
    ),
];

/// Faults so deep that other cases are bound to stumble over them as well.
fn drags_others_along(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::NoDedup
            | Fault::CheckThenAct
            | Fault::DedupsEverything
            | Fault::DoesNothing
            | Fault::ForgetsEarly
            | Fault::ReplaysOnce
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn each_planted_fault_is_found_by_the_case_that_is_there_for_it() {
    let wrong: Vec<String> = stream::iter(FOUND)
        .map(|(fault, fails, advice)| async move {
            let address = serve(not_idempotent::router(fault)).await;
            let run = probe_all(&address, &["--busy-timeout", "3s"]).await;
            let (failed, advised) = (run.with_outcome("fail"), run.with_outcome("advice"));
            let right = if drags_others_along(fault) {
                failed.is_superset(&names(fails))
            } else {
                failed == names(fails) && advised == names(advice)
            };
            let code = if fails.is_empty() { 0 } else { 9 };
            (!right || run.code != code)
                .then(|| format!("{fault:?}: exit {}\n{}", run.code, run.blamed()))
        })
        .buffer_unordered(8)
        .filter_map(async |wrong| wrong)
        .collect()
        .await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_found_where_nothing_is_wrong() {
    let address = serve(not_idempotent::router(Fault::None)).await;
    let run = probe_all(&address, &[]).await;
    assert_eq!(run.code, 0, "{run:?}");
    for outcome in ["fail", "advice", "inconclusive", "skipped"] {
        assert_eq!(
            run.with_outcome(outcome),
            names(&[]),
            "{outcome}: {}",
            run.out
        );
    }
    let report = run.report();
    assert_eq!(
        (&report["verdict"], &report["counted"]),
        (&"kept".into(), &true.into())
    );
    assert!(
        report["cases"]
            .as_array()
            .unwrap()
            .iter()
            .all(|case| case["weak"] == false)
    );
}

/// A body that makes a service fail need not be known: one of another type often does.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_an_exception_leaves_taken_is_found_without_a_hint() {
    let address = serve(not_idempotent::router(Fault::StuckAfterException)).await;
    let url = format!("{address}/payments");
    let only = ["--only", "key-after-error", "--busy-timeout", "1s"];
    let args = [&url, "-d", r#"{"amount": {{number}}}"#, "--format", "json"];
    let run = crate::fixture::probe(&[&args[..], &only].concat()).await;
    let case = run.case("key-after-error");
    assert_eq!((run.code, &case["outcome"]), (9, &"fail".into()), "{run:?}");
    assert!(
        case["observed"].as_str().unwrap().contains("stuck"),
        "{case}"
    );
}

/// Each of these shows in answers alone.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_count_most_faults_are_still_found() {
    for (fault, case) in [
        (Fault::NoDedup, "sequential-duplicate"),
        (Fault::CheckThenAct, "concurrent-duplicates"),
        (Fault::DedupsEverything, "different-keys"),
        (Fault::IgnoresPayload, "changed-payload"),
        (Fault::CutsKeys, "long-key"),
    ] {
        let address = serve(not_idempotent::router(fault)).await;
        let url = format!("{address}/payments");
        let body = r#"{"amount": {{number}}}"#;
        let run =
            crate::fixture::probe(&[&url, "-d", body, "--only", case, "--format", "json"]).await;
        assert_eq!(
            (run.code, &run.case(case)["outcome"]),
            (9, &"fail".into()),
            "{fault:?}: {run:?}"
        );
    }
}

/// And this one does not: it must not be called a pass.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_count_an_effect_that_no_answer_names_is_no_pass() {
    let address = serve(not_idempotent::router(Fault::ForgetsOnDisconnect)).await;
    let url = format!("{address}/payments");
    let body = r#"{"amount": {{number}}}"#;
    let run = crate::fixture::probe(&[&url, "-d", body, "--late", "1s", "--format", "json"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(run.case("cut-before-answer")["outcome"], "inconclusive");
    assert_eq!(run.case("sequential-duplicate")["weak"], true);
    assert_eq!(
        run.with_outcome("skipped"),
        names(&["key-after-error", "other-endpoint", "other-principal"])
    );
}
