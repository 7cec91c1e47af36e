//! The cases: what each asks, what a correct API answers, and who says so.

use clap::ValueEnum;

/// How bad it is when an API does otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// Callers are harmed: something happens twice, or never, or to somebody else.
    Must,
    /// Callers can live with it.
    Advice,
}

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Must => "must",
            Self::Advice => "advice",
        }
    }
}

/// One thing that is tried. Its name never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
#[allow(missing_docs, reason = "the table below says it")]
pub(super) enum Case {
    DifferentKeys,
    SequentialDuplicate,
    ConcurrentDuplicates,
    DuplicateAfterRace,
    ChangedPayload,
    ChangedPayloadInFlight,
    ChangedMember,
    MemberOrder,
    KeyForms,
    MissingKey,
    EmptyKey,
    LongKey,
    UppercaseKeys,
    OddKeys,
    TwoKeys,
    CutAfterHeaders,
    CutMidBody,
    CutBeforeAnswer,
    ReplayAnswer,
    ReplayHeaders,
    ReplayCookies,
    ReplayDate,
    ReplayMarked,
    OtherEndpoint,
    OtherPrincipal,
    FailedValidation,
    KeyAfterError,
    ProblemDocuments,
    RetryAfter,
    LateDuplicate,
}

/// What there is to know about a case.
#[derive(Debug)]
pub(super) struct About {
    pub(super) case: Case,
    pub(super) level: Level,
    /// What is done.
    pub(super) tries: &'static str,
    /// What a correct API answers.
    pub(super) correct: &'static str,
    /// Who says so.
    pub(super) source: &'static str,
    /// The statuses that are right where the case judges one; `--allow` adds to them.
    pub(super) statuses: &'static [u16],
}

impl Case {
    pub(super) fn name(self) -> String {
        // No variant is skipped, so each has a value.
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(super) fn about(self) -> &'static About {
        &CASES[self as usize]
    }
}

const DRAFT: &str = "draft-ietf-httpapi-idempotency-key-header";
const COMMON_SENSE: &str = "common sense";
const STRIPE: &str = "Stripe's practice";

/// In the order in which they run, which is the order of [`Case`].
pub(super) const CASES: [About; 30] = [
    About {
        case: Case::DifferentKeys,
        level: Level::Must,
        tries: "Two intents with two keys.",
        correct: "Both are accepted, and each has its own effect.",
        source: COMMON_SENSE,
        statuses: &[],
    },
    About {
        case: Case::SequentialDuplicate,
        level: Level::Must,
        tries: "The same request again, after the first was answered.",
        correct: "The first answer; no second effect.",
        source: DRAFT,
        statuses: &[200, 201, 202, 204],
    },
    About {
        case: Case::ConcurrentDuplicates,
        level: Level::Must,
        tries: "The same request many times at once, in several rounds.",
        correct: "One effect. Each gets the one answer, now or after a wait, or gets 409 or 202; never 5xx.",
        source: DRAFT,
        statuses: &[409, 202],
    },
    About {
        case: Case::DuplicateAfterRace,
        level: Level::Must,
        tries: "Once more, after such a race is over.",
        correct: "The winner's answer.",
        source: DRAFT,
        statuses: &[],
    },
    About {
        case: Case::ChangedPayload,
        level: Level::Must,
        tries: "A used key with another payload.",
        correct: "422; 409 and 400 will do. Neither the old answer nor a second effect, and the original is still replayed.",
        source: DRAFT,
        statuses: &[422, 409, 400],
    },
    About {
        case: Case::ChangedPayloadInFlight,
        level: Level::Must,
        tries: "Two payloads with one key at once.",
        correct: "One of them is accepted; the other is refused, now and later.",
        source: DRAFT,
        statuses: &[422, 409, 400],
    },
    About {
        case: Case::ChangedMember,
        level: Level::Must,
        tries: "A used key with a JSON body in which one member differs; each member in turn.",
        correct: "422; 409 and 400 will do. Never the old answer: it is of another request.",
        source: DRAFT,
        statuses: &[422, 409, 400],
    },
    About {
        case: Case::MemberOrder,
        level: Level::Advice,
        tries: "The same JSON object with its members in another order and other white space.",
        correct: "The first answer: it is the same request.",
        source: "RFC 8259, 4",
        statuses: &[200, 201, 202, 204],
    },
    About {
        case: Case::KeyForms,
        level: Level::Advice,
        tries: "The key as a quoted string and as a raw token.",
        correct: "They are one key.",
        source: DRAFT,
        statuses: &[400],
    },
    About {
        case: Case::MissingKey,
        level: Level::Advice,
        tries: "No key.",
        correct: "400, unless the key is documented as optional.",
        source: DRAFT,
        statuses: &[400],
    },
    About {
        case: Case::EmptyKey,
        level: Level::Must,
        tries: "Two intents with an empty key.",
        correct: "400. Never one key that all share who send none.",
        source: COMMON_SENSE,
        statuses: &[400],
    },
    About {
        case: Case::LongKey,
        level: Level::Must,
        tries: "Two keys of 1,000 characters that differ in the last one.",
        correct: "4xx, or two keys. Never cut short to one key; never 5xx.",
        source: COMMON_SENSE,
        statuses: &[400, 413, 414, 422, 431],
    },
    About {
        case: Case::UppercaseKeys,
        level: Level::Must,
        tries: "Two keys that differ in upper and lower case only.",
        correct: "Two keys, or 4xx.",
        source: COMMON_SENSE,
        statuses: &[400, 422],
    },
    About {
        case: Case::OddKeys,
        level: Level::Must,
        tries: "Keys with quotes, spaces, commas and letters beyond ASCII, each twice.",
        correct: "4xx, or a key like any other. Never 5xx.",
        source: COMMON_SENSE,
        statuses: &[400, 422],
    },
    About {
        case: Case::TwoKeys,
        level: Level::Advice,
        tries: "Two key headers in one request.",
        correct: "400: nobody can know which one the caller will send again.",
        source: DRAFT,
        statuses: &[400],
    },
    About {
        case: Case::CutAfterHeaders,
        level: Level::Must,
        tries: "The connection is cut after the headers; then the request is sent again.",
        correct: "The retry is accepted; one effect.",
        source: COMMON_SENSE,
        statuses: &[],
    },
    About {
        case: Case::CutMidBody,
        level: Level::Must,
        tries: "The connection is cut in the middle of the body; then the request is sent again.",
        correct: "The retry is accepted; one effect.",
        source: COMMON_SENSE,
        statuses: &[],
    },
    About {
        case: Case::CutBeforeAnswer,
        level: Level::Must,
        tries: "The connection is cut after the request, at several moments before the answer; then the request is sent again.",
        correct: "The retry is accepted, perhaps after 409s; one effect.",
        source: COMMON_SENSE,
        statuses: &[],
    },
    About {
        case: Case::ReplayAnswer,
        level: Level::Must,
        tries: "Status and body of a replay.",
        correct: "Those of the first answer, byte for byte.",
        source: DRAFT,
        statuses: &[],
    },
    About {
        case: Case::ReplayHeaders,
        level: Level::Must,
        tries: "Content-Type, Content-Encoding, Location and ETag of a replay.",
        correct: "Those of the first answer.",
        source: COMMON_SENSE,
        statuses: &[],
    },
    About {
        case: Case::ReplayCookies,
        level: Level::Must,
        tries: "Set-Cookie of a replay.",
        correct: "None, or a fresh one. A stored cookie can hand a session to somebody else.",
        source: COMMON_SENSE,
        statuses: &[],
    },
    About {
        case: Case::ReplayDate,
        level: Level::Advice,
        tries: "Date of a replay, two seconds later.",
        correct: "The time of the replay, not of the first answer.",
        source: "RFC 9110, 6.6.1",
        statuses: &[],
    },
    About {
        case: Case::ReplayMarked,
        level: Level::Advice,
        tries: "A header that distinguishes a replay from a first answer.",
        correct: "Idempotent-Replayed: true, on replays only.",
        source: STRIPE,
        statuses: &[],
    },
    About {
        case: Case::OtherEndpoint,
        level: Level::Must,
        tries: "A used key at another endpoint (--other-url).",
        correct: "Never the first endpoint's answer: an intent of its own, or refused with 422, 409 or 400.",
        source: STRIPE,
        statuses: &[422, 409, 400],
    },
    About {
        case: Case::OtherPrincipal,
        level: Level::Must,
        tries: "Somebody else's key, by another principal (--other-header).",
        correct: "Never the other's answer: an intent of its own.",
        source: "draft-ietf-httpapi-idempotency-key-header, security considerations",
        statuses: &[],
    },
    About {
        case: Case::FailedValidation,
        level: Level::Advice,
        tries: "An invalid body, then the corrected one with the same key.",
        correct: "4xx, then accepted: nothing had begun, so the key is not used up.",
        source: STRIPE,
        statuses: &[],
    },
    About {
        case: Case::KeyAfterError,
        level: Level::Must,
        tries: "A request that the API answers with 5xx (--error-body), then the same again.",
        correct: "Any answer but \"under way\": an error does not leave its key taken.",
        source: COMMON_SENSE,
        statuses: &[],
    },
    About {
        case: Case::ProblemDocuments,
        level: Level::Advice,
        tries: "What errors about the key look like.",
        correct: "application/problem+json.",
        source: DRAFT,
        statuses: &[],
    },
    About {
        case: Case::RetryAfter,
        level: Level::Advice,
        tries: "409 to duplicates of a request that is under way.",
        correct: "It says with Retry-After when to come back.",
        source: COMMON_SENSE,
        statuses: &[],
    },
    About {
        case: Case::LateDuplicate,
        level: Level::Must,
        tries: "The run's first request once more, at its end and not before --late is over.",
        correct: "The first answer, or 410; no second effect.",
        source: DRAFT,
        statuses: &[410],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_in_the_table_in_the_order_of_the_names() {
        let named: Vec<_> = Case::value_variants().to_vec();
        let observed: Vec<_> = CASES.iter().map(|about| about.case).collect();
        assert_eq!(named, observed);
    }

    #[test]
    fn the_page_of_the_docs_lists_exactly_the_cases() {
        let page = include_str!("../../../docs/src/how-to/probe.md");
        let listed: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| `") && line.matches(" | ").count() == 4)
            .collect();
        let expected: Vec<String> = CASES
            .iter()
            .map(|about| {
                format!(
                    "| `{}` | {} | {} | {} | {} |",
                    about.case.name(),
                    about.level.name(),
                    about.tries,
                    about.correct,
                    about.source
                )
            })
            .collect();
        assert_eq!(
            listed,
            expected,
            "docs/src/how-to/probe.md must list:\n{}",
            expected.join("\n")
        );
    }
}
