//! `pgonce intent settle`, `fail`, `release`, `retry` and `evict`.

use std::process::Stdio;

use serde_json::Value;

use crate::fixture::{Fixture, Run};
use crate::serve::DEADLINE;

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
    // So may what has called a provider, and was forgotten.
    fixture
        .sql(
            "select pgonce.external_send('pay', 'called', fence, 'charge', 'bank', '\\x01'), \
                 pgonce.external_record('pay', 'called', fence, 'charge', 'unknown'), \
                 pgonce.release('pay', 'called', fence, p_forget => true) \
               from pgonce.claim('pay', 'called', '\\x01', '1 minute')",
        )
        .await;
    let called = fixture.run(&["intent", "show", "pay", "called"]);
    assert!(
        called.code == 7 && called.err.contains("may have happened"),
        "{called:?}"
    );
    let found = fixture.json(&["find", "called"]);
    assert_eq!(found["found"][0]["what"], "external call", "{found}");
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

/// How many intents a command is about, by its preview.
fn previewed(fixture: &Fixture, args: &[&str]) -> u64 {
    let preview = fixture.json(&[args, &WHY, &["--dry-run"]].concat());
    preview["count"].as_u64().unwrap()
}

#[tokio::test]
async fn filters_choose_by_failure_classification_owner_and_age() {
    let fixture = stuck(&["a", "b"]).await;
    fixture
        .sql(
            "select pgonce.define_scope('take', '1 day');
             select pgonce._move_clock('-3 hours');
             select pgonce.claim('pay', 'old', '\\x01', '1 second', 'worker-9');
             select pgonce.claim('take', 'old', '\\x01', '1 second', 'worker-9');
             select pgonce.fail('pay', 'declined-old', '\\x01', 1, false, 'declined', 'no', p_owner => 'web-1');
             select pgonce._reset_clock();
             select pgonce.fail('pay', 'declined-' || n, '\\x01', 1, false, 'declined', 'no', p_owner => 'web-' || n) from generate_series(1, 2) n;
             select pgonce.fail('pay', 'other', '\\x01', 1, false, 'other', 'no')",
        )
        .await;
    let fail = |more: &[&'static str]| {
        let fail = ["intent", "fail", "pay", "--stuck", "--code", "lost"];
        [&fail[..], more].concat()
    };
    let stuck: [(&[&'static str], u64); 10] = [
        (&[], 3),
        (&["--classification", "needs_manual_action"], 3),
        (&["--classification", "safe_to_retry"], 0),
        (&["--owner", "worker-9"], 1),
        (&["--owner", "nobody"], 0),
        (&["--older-than", "1h"], 1),
        (&["--older-than", "1d"], 0),
        (&["--owner", "worker-9", "--older-than", "1h"], 1),
        (&["--prefix", "o"], 1),
        (&["--prefix", "ld"], 0),
    ];
    for (filter, count) in stuck {
        assert_eq!(previewed(&fixture, &fail(filter)), count, "{filter:?}");
    }
    let safe = ["intent", "release", "take", "--stuck", "--classification"];
    assert_eq!(
        previewed(&fixture, &[&safe[..], &["safe_to_retry"]].concat()),
        1
    );
    let retry = |more: &[&'static str]| {
        let retry = ["intent", "retry", "pay", "--failed", "declined"];
        [&retry[..], more].concat()
    };
    let failed: [(&[&'static str], u64); 4] = [
        (&[], 3),
        (&["--owner", "web-2"], 1),
        (&["--older-than", "2h"], 1),
        (&["--prefix", "declined-o"], 1),
    ];
    for (filter, count) in failed {
        assert_eq!(previewed(&fixture, &retry(filter)), count, "{filter:?}");
    }
    // Only the old one is tried again: its key is free.
    let done = fixture.json(&[&retry(&["--older-than", "2h"])[..], &WHY, &["--yes"]].concat());
    assert_eq!(
        (&done["done"], &done["more"]),
        (&1.into(), &false.into()),
        "{done}"
    );
    for (key, outcome) in [
        ("declined-old", "fresh"),
        ("declined-1", "refused"),
        ("other", "refused"),
    ] {
        assert_eq!(claim(&fixture, key).await.0, outcome, "{key}");
    }
    // One by its key.
    fixture.ok(&[&["intent", "retry", "pay", "other", "--yes"][..], &WHY].concat());
    assert_eq!(claim(&fixture, "other").await.0, "fresh");
}

#[tokio::test]
async fn more_than_one_command_may_change_are_not_hidden_by_the_count() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "select pgonce.define_scope('pay', '1 day'); \
             insert into pgonce.intent (fence, first_at, last_at, expires_at, attempts, status, tenant, scope, key, fingerprint, failure_code) \
             select 1, now(), now(), now() + interval '1 day', 1, 'failed_final', '', 'pay', 'k' || n, '\\x01', 'down' from generate_series(1, 10001) n",
        )
        .await;
    let retry = ["intent", "retry", "pay", "--failed", "down"];
    let preview = fixture.ok(&[&retry[..], &WHY, &["--dry-run"]].concat());
    assert!(
        preview.contains("the first 10000 intents") && preview.contains("more match"),
        "{preview}"
    );
    fixture
        .sql("delete from pgonce.intent where key = 'k7'")
        .await;
    let preview = fixture.ok(&[&retry[..], &WHY, &["--dry-run"]].concat());
    assert!(
        preview.contains("would retry 10000 intents of pay"),
        "{preview}"
    );
}

/// A probe that finds one order, for work whose holders vanished.
const PROBED: &str = "
create role the_owner;
create function public.find_order(p_scope text, p_key text, p_tenant text) returns table (answer jsonb, ref_type text, ref_id text)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select '{\"id\": 81}'::jsonb, 'order', '81' where p_key = 'made' $$;
alter function public.find_order owner to the_owner;
select pgonce.define_scope('orders', '1 day', p_stale => 'hold', p_probe => 'public.find_order');
select pgonce.claim('orders', k, '\\x01', '1 minute') from unnest(array['made', 'absent']) k;
update pgonce.intent set lease_until = pgonce.now() - interval '1 second';";

#[tokio::test]
async fn recover_lists_first_and_then_prints_what_was_decided() {
    let fixture = Fixture::installed().await;
    let role = format!("probe_{}", std::process::id());
    fixture.sql(&PROBED.replace("the_owner", &role)).await;
    let listed = fixture.json(&["recover", "--dry-run"]);
    assert_eq!(
        (&listed[0]["classification"], &listed[0]["intents"]),
        (&"needs_probe".into(), &2.into()),
        "{listed}"
    );
    let outcome = async |key: &str| {
        let claim = format!("select outcome from pgonce.claim('orders', '{key}', '\\x01')");
        let row = fixture.client.query_one(&claim, &[]).await.unwrap();
        row.get::<_, String>(0)
    };
    assert_eq!(outcome("made").await, "busy", "nothing was done");
    assert_eq!(
        fixture.ok(&["recover"]),
        "recovered: 1 succeeded, 1 needs manual action\n"
    );
    assert_eq!(outcome("made").await, "replay");
    assert_eq!(outcome("absent").await, "busy");
    // Each decision names who let it be made.
    let acts = fixture.json(&["audit", "--act", "recover"]);
    assert_eq!(acts.as_array().unwrap().len(), 2, "{acts}");
    let person = acts[0]["person"].as_str().unwrap();
    assert!(person.starts_with("recovery of "), "{acts}");
    let again = fixture.json(&["recover"]);
    assert_eq!(
        (&again["succeeded"], &again["needs_manual_action"]),
        (&0.into(), &0.into()),
        "{again}"
    );
    fixture
        .sql(&format!("drop owned by {role} cascade; drop role {role}"))
        .await;
}

#[tokio::test]
async fn what_finished_since_it_was_selected_is_not_evicted_by_force() {
    let fixture = stuck(&["a", "b"]).await;
    let (holder, connection) =
        tokio_postgres::connect(&fixture.database.url(), tokio_postgres::NoTls)
            .await
            .unwrap();
    tokio::spawn(connection);
    // The command has selected both when it waits for the first.
    let held = "begin; select from pgonce.intent where key = 'a' for update";
    holder.batch_execute(held).await.unwrap();
    let evict = ["intent", "evict", "pay", "--stuck", "--force", "pay"];
    let mut command = fixture.command(&[&evict[..], &["--yes"], &WHY].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let evicting = command.spawn().unwrap();
    let waits = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";
    let waiting = async || {
        let row = fixture.client.query_one(waits, &[]).await.unwrap();
        row.get::<_, bool>(0)
    };
    pgonce_testkit::wait_until("the command waits", DEADLINE, waiting)
        .await
        .unwrap();
    fixture
        .sql("select pgonce.succeed('pay', 'b', '\\x01', fence, '7') from pgonce.intent where key = 'b'")
        .await;
    holder.batch_execute("rollback").await.unwrap();
    let done = Run::of(evicting.wait_with_output().unwrap());
    assert!(
        done.code == 1
            && done.out.contains("1 done, 1 refused")
            && done.err.contains("it is succeeded now"),
        "{done:?}"
    );
    assert_eq!(claim(&fixture, "a").await.0, "fresh");
    assert_eq!(
        claim(&fixture, "b").await,
        ("replay".to_owned(), Some(7.into()))
    );
}

#[tokio::test]
async fn a_look_up_that_ended_at_its_limit_says_so() {
    let fixture = Fixture::installed().await;
    let add = |principals: &str| {
        format!(
            "insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint) \
             select 1, now(), now() + interval '1 day', 1, 'succeeded', '', 'web', 'same#' || md5(n::text), '\\x01' \
             from generate_series({principals}) n"
        )
    };
    fixture.sql(&add("1, 20")).await;
    let several = fixture.run(&["intent", "show", "web", "same"]);
    assert!(
        several.code == 7 && !several.err.contains("and others"),
        "{several:?}"
    );
    fixture.sql(&add("21, 99")).await;
    let several = fixture.run(&["intent", "show", "web", "same"]);
    assert!(
        several.code == 7
            && several.err.contains("and others")
            && several.err.matches("same#").count() == 20,
        "{several:?}"
    );
    let all = fixture.json(&["find", "same", "--quick"]);
    assert_eq!(
        (all["found"].as_array().unwrap().len(), &all["more"]),
        (99, &Value::Array(Vec::new()))
    );
    assert!(!fixture.ok(&["find", "same"]).contains("there may be more"));
    fixture.sql(&add("100, 130")).await;
    let cut = fixture.json(&["find", "same", "--quick"]);
    let intents = "keys, references and correlations of intents";
    assert_eq!(
        (cut["found"].as_array().unwrap().len(), &cut["more"][0]),
        (100, &intents.into())
    );
    let words = format!("a look-up ends after 100, there may be more: {intents}");
    assert!(fixture.ok(&["find", "same"]).contains(&words));
    let by_row = fixture.run(&["find", "same", "-o", "jsonl"]);
    assert!(
        by_row.err.contains(&words) && by_row.out.lines().count() == 100,
        "{by_row:?}"
    );
}
