//! What each case does.

mod cuts;
mod duplicates;
mod errors;
mod keys;
mod payloads;
mod replays;
mod strangers;

use super::answer::{Answer, Response};
use super::case::Case;
use super::finding::{Finding, Found};
use super::prober::Prober;

/// So often is a race run: one may be won by luck.
const ROUNDS: usize = 3;

pub(super) async fn run(case: Case, p: &Prober) -> Finding {
    p.audited(tried(case, p)).await
}

async fn tried(case: Case, p: &Prober) -> Found {
    match case {
        Case::DifferentKeys => duplicates::different_keys(p).await,
        Case::SequentialDuplicate => duplicates::sequential(p).await,
        Case::ConcurrentDuplicates => duplicates::concurrent(p).await,
        Case::DuplicateAfterRace => duplicates::after_race(p).await,
        Case::ChangedPayload => payloads::changed(p).await,
        Case::ChangedPayloadInFlight => payloads::changed_in_flight(p).await,
        Case::ChangedMember => payloads::changed_member(p).await,
        Case::MemberOrder => payloads::member_order(p).await,
        Case::KeyForms => keys::forms(p).await,
        Case::MissingKey => keys::missing(p).await,
        Case::EmptyKey => keys::empty(p).await,
        Case::LongKey => keys::long(p).await,
        Case::UppercaseKeys => keys::uppercase(p).await,
        Case::OddKeys => keys::odd(p).await,
        Case::TwoKeys => keys::two(p).await,
        Case::CutAfterHeaders => cuts::after_headers(p).await,
        Case::CutMidBody => cuts::mid_body(p).await,
        Case::CutBeforeAnswer => cuts::before_answer(p).await,
        Case::ReplayAnswer => replays::answer(p).await,
        Case::ReplayHeaders => replays::headers(p).await,
        Case::ReplayCookies => replays::cookies(p).await,
        Case::ReplayDate => replays::date(p).await,
        Case::ReplayMarked => replays::marked(p).await,
        Case::OtherEndpoint => strangers::other_endpoint(p).await,
        Case::OtherPrincipal => strangers::other_principal(p).await,
        Case::FailedValidation => errors::failed_validation(p).await,
        Case::KeyAfterError => errors::key_after_error(p).await,
        Case::ProblemDocuments => errors::problem_documents(p).await,
        Case::RetryAfter => errors::retry_after(p).await,
        Case::LateDuplicate => duplicates::late(p).await,
    }
}

/// Whatever a correct API is asked, it answers, and not with an error of its own.
fn answered(p: &Prober, case: Case, what: &str, response: Response) -> Found<Answer> {
    match response {
        Err(why) => Err(Finding::fail(format!("{what} got no answer: {why}"))),
        Ok(answer) if answer.is_server_error() && !p.is_allowed(case, &answer) => {
            Err(Finding::fail(format!("{what} was answered {answer}")))
        }
        Ok(answer) if answer.status == 429 && !p.is_allowed(case, &answer) => {
            Err(Finding::inconclusive(format!(
                "{what} was turned away for the rate of requests: {answer}"
            )))
        }
        Ok(answer) => Ok(answer),
    }
}
