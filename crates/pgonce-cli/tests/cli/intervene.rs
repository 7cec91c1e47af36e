//! `pgonce intent settle`, `fail`, `release`, `retry` and `evict`.

use serde_json::Value;

use crate::fixture::{Fixture, Run};

/// A scope that holds, with intents whose holders vanished.
async fn stuck(keys: &[&str]) -> Fixture {
    let fixture = Fixture::installed().await;
    fixture
        .sql("select pgonce.define_scope('pay', '1 day', p_stale => 'hold')")
        .await;
    for key in keys {
        let claim = format!("select pgonce.claim('pay', '{key}', '\\x01', '1 minute')");
        fixture.sql(&claim).await;
    }
    let past = "update pgonce.intent set lease_until = pgonce.now() - interval '1 second'";
    fixture.sql(past).await;
    fixture
}

async fn claim(fixture: &Fixture, key: &str) -> (String, Option<Value>) {
    let claim = format!("select outcome, answer::text from pgonce.claim('pay', '{key}', '\\x01')");
    let row = fixture.client.query_one(&claim, &[]).await.unwrap();
    let answer: Option<String> = row.get(1);
    (
        row.get(0),
        answer.map(|text| serde_json::from_str(&text).unwrap()),
    )
}

const WHY: [&str; 2] = ["--reason", "ticket 7"];

#[tokio::test]
async fn an_operator_settles_what_is_held_and_the_record_says_who_and_why() {
    // As the HTTP layer stores a client's key.
    let stored = format!("k-1#{}", "0".repeat(32));
    let fixture = stuck(&[&stored]).await;
    assert_eq!(claim(&fixture, &stored).await.0, "busy");
    let settle = [
        "intent",
        "settle",
        "pay",
        "k-1",
        "--answer",
        "{\"paid\": 7}",
    ];
    let preview = fixture.ok(&[&settle[..], &WHY, &["--dry-run"]].concat());
    assert!(preview.contains("would settle k-1#"), "{preview}");
    let unconfirmed = fixture.run(&[&settle[..], &WHY].concat());
    assert_eq!(unconfirmed.code, 11, "{unconfirmed:?}");
    assert_eq!(
        fixture.run(&[&settle[..], &["--yes"]].concat()).code,
        2,
        "no reason"
    );
    assert_eq!(claim(&fixture, &stored).await.0, "busy");

    fixture.ok(&[&settle[..], &WHY, &["--yes"]].concat());
    let answer = serde_json::json!({"paid": 7});
    assert_eq!(
        claim(&fixture, &stored).await,
        ("replay".to_owned(), Some(answer))
    );
    let shown = fixture.json(&["intent", "show", "pay", "k-1"]);
    let timeline = shown["timeline"].as_array().unwrap();
    let act = timeline.iter().find(|point| point["what"] == "settle");
    assert_eq!(act.unwrap()["detail"], "ticket 7", "{shown}");
    // The same for people, in 80 columns.
    let mut show = fixture.command(&["intent", "show", "pay", "k-1"]);
    let text = Run::of(show.env("COLUMNS", "80").output().unwrap()).out;
    assert!(text.starts_with("It happened once."), "{text}");
    assert!(
        text.contains("timeline:\n") && text.contains("ticket 7") && !text.contains("\"what\""),
        "{text}"
    );
    // What an operator removed may have happened.
    let evict = ["intent", "evict", "pay", &stored, "--force", "pay", "--yes"];
    fixture.ok(&[&evict[..], &WHY].concat());
    let gone = fixture.run(&["intent", "show", "pay", &stored]);
    assert!(
        gone.code == 7 && gone.err.contains("may have happened"),
        "{gone:?}"
    );
    let found = fixture.json(&["find", &stored]);
    assert_eq!(found["found"][0]["status"], "evict", "{found}");
    let none = fixture.run(&[&["intent", "release", "pay", "nothing", "--yes"][..], &WHY].concat());
    assert_eq!(none.code, 7, "{none:?}");
}

#[tokio::test]
async fn a_second_effect_is_opened_only_by_typing_the_scope() {
    let fixture = stuck(&["k"]).await;
    let release = [&["intent", "release", "pay", "k", "--yes"][..], &WHY].concat();
    let refused = fixture.run(&release);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(
        refused.err.contains("may have happened") && refused.err.contains("--force pay"),
        "{refused:?}"
    );
    let mistyped = fixture.run(&[&release[..], &["--force", "yes"]].concat());
    assert_eq!(mistyped.code, 11, "{mistyped:?}");
    assert_eq!(claim(&fixture, "k").await.0, "busy");
    fixture.ok(&[&release[..], &["--force", "pay"]].concat());
    assert_eq!(claim(&fixture, "k").await.0, "retry");
}

#[tokio::test]
async fn many_are_previewed_counted_and_changed_at_once() {
    let fixture = stuck(&["a", "b", "c"]).await;
    fixture
        .sql("select pgonce.claim('pay', 'alive', '\\x01', '1 minute')")
        .await;
    let fail = ["intent", "fail", "pay", "--stuck", "--code", "lost"];
    let preview = fixture.json(&[&fail[..], &WHY, &["--dry-run"]].concat());
    assert_eq!(preview["count"], 3, "{preview}");
    let done = fixture.json(&[&fail[..], &WHY, &["--yes"]].concat());
    assert_eq!(
        (&done["done"], &done["refused"]),
        (&3.into(), &0.into()),
        "{done}"
    );
    for (key, outcome) in [
        ("a", "refused"),
        ("b", "refused"),
        ("c", "refused"),
        ("alive", "busy"),
    ] {
        assert_eq!(claim(&fixture, key).await.0, outcome, "{key}");
    }
}
