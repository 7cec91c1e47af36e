//! What may be a key, and which keys are one.

use super::answered;
use crate::answer::Answer;
use crate::case::Case;
use crate::evidence::Meeting;
use crate::finding::{Finding, Found};
use crate::prober::{Intent, Prober};

const LONG: usize = 1_000;

pub(super) async fn forms(p: &Prober) -> Found {
    let case = Case::KeyForms;
    let before = p.count().await?;
    let intent = p.intent();
    let first = p.accepted(&p.ask(&intent)).await?;
    let other = p.ask_with(&[p.written(&intent.key, true)], intent.body.clone());
    let second = answered(p, case, "the key's other form", p.send(&other).await)?;
    if !p.accepts(&second) {
        let observed = format!(
            "the other form is not the same key, but refused: {}",
            second.status
        );
        return match p.is_allowed(case, &second) {
            true => Ok(Finding::pass(observed)),
            false => Err(Finding::advice(observed)),
        };
    }
    let made = p.made_since(before).await?;
    let judged = p.one_effect(&[first, second], made).await;
    judged
        .map(|finding| Finding {
            observed: "the quoted string and the raw token are one key".into(),
            ..finding
        })
        .map_err(|finding| Finding {
            observed: format!(
                "the quoted string and the raw token are two keys: {}",
                finding.observed
            ),
            ..finding.mild()
        })
}

pub(super) async fn missing(p: &Prober) -> Found {
    let response = p.send(&p.ask_with(&[], p.intent().body)).await;
    let answer = answered(p, Case::MissingKey, "a request without a key", response)?;
    expect_refusal(
        p,
        Case::MissingKey,
        &answer,
        "without a key; where it is optional: --allow missing-key=2xx",
    )
}

pub(super) async fn two(p: &Prober) -> Found {
    let keys = [p.token(), p.token()].map(|key| p.written(&key, false));
    let response = p.send(&p.ask_with(&keys, p.intent().body)).await;
    let answer = answered(p, Case::TwoKeys, "a request with two keys", response)?;
    expect_refusal(p, Case::TwoKeys, &answer, "with two keys")
}

fn expect_refusal(p: &Prober, case: Case, answer: &Answer, so: &str) -> Found {
    if p.is_right(case, answer) {
        return Ok(Finding::pass(format!("answered {}", answer.status)));
    }
    Err(if p.accepts(answer) {
        Finding::advice(format!("accepted {so}"))
    } else {
        Finding::advice(format!("refused, but with {answer}; the draft says 400"))
    })
}

pub(super) async fn empty(p: &Prober) -> Found {
    let case = Case::EmptyKey;
    let before = p.count().await?;
    let key = [p.written("", false)];
    let response = p.send(&p.ask_with(&key, p.intent().body)).await;
    let first = answered(p, case, "an empty key", response)?;
    if !p.accepts(&first) {
        return refused_key(p, case, &first);
    }
    let response = p.send(&p.ask_with(&key, p.intent().body)).await;
    let second = answered(p, case, "a second empty key", response)?;
    let made = p.made_since(before).await?;
    match p.meeting(&first, &second, made).await? {
        Meeting::Apart if p.is_allowed(case, &first) => {
            Ok(Finding::pass("taken for no key, as allowed"))
        }
        Meeting::Apart => Err(Finding::advice(
            "an empty key is taken for no key: accepted each time",
        )),
        Meeting::Met(how) => Err(Finding::fail(format!(
            "two intents with an empty key were taken for one: {how}"
        ))),
        Meeting::Unclear(why) => Err(Finding::inconclusive(why)),
    }
}

pub(super) async fn long(p: &Prober) -> Found {
    let stem = p.token().repeat(LONG);
    let keys = ["a", "b"].map(|end| format!("{}{end}", &stem[..LONG - 1]));
    two_keys_apart(p, Case::LongKey, &keys, "are cut short").await
}

pub(super) async fn uppercase(p: &Prober) -> Found {
    let key = format!("probe-{}", p.token().replace('-', "x"));
    let keys = [key.to_uppercase(), key];
    two_keys_apart(
        p,
        Case::UppercaseKeys,
        &keys,
        "are compared without regard to case",
    )
    .await
}

/// Two similar keys for two intents: each is refused, or each is a key of its own.
async fn two_keys_apart(p: &Prober, case: Case, keys: &[String; 2], blame: &str) -> Found {
    let before = p.count().await?;
    let [one, two] = keys.each_ref().map(|key| Intent {
        key: key.clone(),
        ..p.intent()
    });
    let response = p.send(&p.ask(&one)).await;
    let first = answered(p, case, "the first of two similar keys", response)?;
    if !p.accepts(&first) {
        return refused_key(p, case, &first);
    }
    let response = p.send(&p.ask(&two)).await;
    let second = answered(p, case, "the second of two similar keys", response)?;
    let made = p.made_since(before).await?;
    match p.meeting(&first, &second, made).await? {
        Meeting::Apart => {
            let finding = Finding::pass("two keys");
            Ok(if p.counts() { finding } else { finding.weak() })
        }
        Meeting::Met(how) => Err(Finding::fail(format!("keys {blame}: {how}"))),
        Meeting::Unclear(why) => Err(Finding::inconclusive(why)),
    }
}

pub(super) async fn odd(p: &Prober) -> Found {
    let case = Case::OddKeys;
    let (mut honoured, mut refused) = (0, 0);
    for odd in [
        r#"it's "odd"; -- \ %00 {}"#,
        "two words, and a comma",
        "schlüssel-ключ-鍵",
    ] {
        let intent = Intent {
            key: format!("{odd} {}", p.token()),
            ..p.intent()
        };
        let before = p.count().await?;
        let what = format!("the key {odd:?}");
        let first = answered(p, case, &what, p.send(&p.ask(&intent)).await)?;
        if !p.accepts(&first) {
            refused_key(p, case, &first)?;
            refused += 1;
            continue;
        }
        let again = answered(p, case, &what, p.send_until_settled(&p.ask(&intent)).await)?;
        if !p.accepts(&again) {
            return Err(Finding::fail(format!(
                "{what} was accepted, then answered {again}"
            )));
        }
        let made = p.made_since(before).await?;
        p.one_effect(&[first, again], made)
            .await
            .map_err(|finding| Finding {
                observed: format!("{what}: {}", finding.observed),
                ..finding
            })?;
        honoured += 1;
    }
    let finding = Finding::pass(format!("{honoured} honoured, {refused} refused"));
    Ok(if p.counts() || honoured == 0 {
        finding
    } else {
        finding.weak()
    })
}

/// A key that is no key is refused; with which status matters less.
fn refused_key(p: &Prober, case: Case, answer: &Answer) -> Found {
    if p.is_right(case, answer) {
        Ok(Finding::pass(format!("refused with {}", answer.status)))
    } else if answer.is_refusal() {
        Err(Finding::advice(format!(
            "refused, but with {answer}; the draft says 400"
        )))
    } else {
        Err(Finding::inconclusive(format!("answered {answer}")))
    }
}
