//! Counts of the console: where one stopped at a bound, it says so, and a button names as many as it reaches.

use serde_json::{Value, json};

use crate::console::OPERATOR;
use crate::fixture::Fixture;
use crate::serve::{Serving, TOKENS};

async fn sections(serving: &Serving, path: &str) -> Value {
    let answer = serving.get(&format!("/api/v1{path}"), OPERATOR).await;
    assert_eq!(answer.status(), 200, "{path}");
    answer.json::<Value>().await.unwrap()["sections"].take()
}

/// Of each thing so many that a bound which several counts share is reached, and no count reaches it alone.
async fn fill(fixture: &Fixture) {
    fixture
        .sql("select pgonce.create_subscription('s'); select pgonce.create_subscription('rare', p_topics => '{rare}')")
        .await;
    fixture
        .sql(
            "select pgonce._create_outbox_partitions();
             insert into pgonce.outbox select e.* from generate_series(1, 20000) n cross join lateral pgonce._event_row('t', 'y', 'u' || n, '{}', null, '{}', null, '', 64) e;
             insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, attempts, parked_at, created_at, size, message_id, topic, type, headers, reason)
             select '', 's', 'u' || n, n, pgonce._lane_of('', 'u' || n), 'dead', 9, now(), now(), 2, gen_random_uuid(), 't', 'y', '{}', 'r' || n % 60 from generate_series(1, 10500) n;
             insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, due_at, received_at, holds_key, headers, payload)
             select n, '', 'open', 'x', n::text, '\\x01', 1, (case when n % 2 = 0 then 'received' else 'failed_retryable' end)::pgonce.inbox_status, now(), now(), true, '{}', '\\x01'
               from generate_series(1, 3000) n;
             insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, due_at, received_at, holds_key, headers, payload)
             select n, 't' || n % 3, 'poison', 'x', n::text, '\\x01', 1, 'failed_final', now(), now(), true, '{}', '\\x01' from generate_series(3001, 9000) n;
             insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, due_at, received_at, holds_key, headers, payload)
             select n, 't' || n % 3, 'few', 'x', n::text, '\\x01', 1, 'received', now(), now(), true, '{}', '\\x01' from generate_series(9001, 9006) n;
             insert into pgonce.job (id, created_at, priority, tenant, queue) select n, now(), 0, '', 'q' || n % 3 from generate_series(1, 21000) n;
             insert into pgonce.job_live (id, state, priority, tenant, queue, due_at)
             select n, (case when n % 2 = 0 then 'running' else 'scheduled' end)::pgonce.job_state, 0, '', 'q' || n % 3, now() from generate_series(1, 10500) n;
             insert into pgonce.job_end (id, ended_at, status, attempts, tenant, queue, failure_code)
             select n, now(), 'dead', 3, '', 'd', 'c' || n % 70 from generate_series(10501, 21000) n;
             select pgonce.define_provider('p0'), pgonce.define_provider('p1');
             insert into pgonce.external_call (effect_key, fence, requested_at, sent_at, deadline_at, status, decides, tenant, scope, key, step, provider, digest)
             select gen_random_uuid(), 1, now(), now(), now() - interval '1 day', 'unknown', true, '', 's', n::text, 'x', 'p' || n % 2, '\\x01' from generate_series(1, 10500) n;
             insert into pgonce.import (tenant, job, number, source, settings, state, runner, backend, leased_until, started_at)
             values ('', 'j', 1, 'f', '{}', 'done', gen_random_uuid(), 1, now(), now());
             insert into pgonce.import_row select '', 'j', 1, n, n, 'failed', null, null, 'c' || n % 60, 'r' from generate_series(1, 10500) n;
             insert into pgonce.suppressed (tenant, scope, replays) select '', 'scope-' || n, n from generate_series(1, 25) n;
             insert into pgonce.intent (fence, first_at, last_at, lease_until, attempts, status, tenant, scope, key, fingerprint)
             select 2, now(), now(), now() - interval '5 hours', 1, 'processing', '', 's', 'k' || n, '\\x02' from generate_series(1, 10050) n",
        )
        .await;
    fixture.sql("vacuum analyze").await;
}

#[tokio::test]
async fn counts_that_share_a_bound_say_together_that_there_are_more() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    for (path, section, flag, count) in [
        ("/outbox?subscription=rare", 0, "waiting_cut", "waiting"),
        ("/outbox?subscription=rare", 2, "waiting_cut", "waiting"),
        ("/outbox?subscription=s", 1, "n_cut", "n"),
        ("/outbox?subscription=s", 3, "parked_cut", "parked"),
        ("/queue?queue=d", 1, "n_cut", "n"),
        ("/external", 0, "manual_cut", "manual"),
        ("/import?job=j&number=1", 1, "n_cut", "n"),
    ] {
        let all = sections(&serving, path).await;
        let rows = all[section]["rows"].as_array().unwrap();
        assert!(
            !rows.is_empty() && rows.iter().all(|row| row[flag] == true),
            "{path}: {rows:?}"
        );
        assert!(rows[0][count].as_i64().unwrap() < 10_000, "{path}");
        let page = serving.text(path, OPERATOR).await;
        let marked = page.matches("+</td>").count();
        assert!(
            marked >= rows.len() && !page.contains("_cut"),
            "{path}: {marked}"
        );
    }
    // What is due of all queues, and nothing else of them.
    let all = sections(&serving, "/queue").await;
    let due = all[0]["rows"].as_array().unwrap();
    let of_one = due.iter().find(|row| row["queue"] == "q1").unwrap();
    assert_eq!(
        ["due_cut", "ready_cut", "blocked_cut", "dead_cut"].map(|flag| of_one[flag] == true),
        [true, false, false, false],
        "{of_one}"
    );
    // Of a consumer, what is open and what is poison each by itself, for all tenants.
    let all = sections(&serving, "/inbox").await;
    let rows = all[0]["rows"].as_array().unwrap();
    for (consumer, open, poison) in [
        ("open", true, false),
        ("poison", false, true),
        ("few", false, false),
    ] {
        let of_it = rows.iter().filter(|row| row["consumer"] == consumer);
        let flags: Vec<_> = of_it
            .map(|row| ["open_cut", "poison_cut", "held_cut"].map(|flag| row[flag] == true))
            .collect();
        let tenants = if consumer == "open" { 1 } else { 3 };
        assert_eq!(flags, vec![[open, poison, open || poison]; tenants]);
    }
    let page = serving.text("/inbox", OPERATOR).await;
    for count in ["500+", "333+", "334+"] {
        assert!(page.contains(&format!(">{count}</td>")), "{count}: {page}");
    }
    assert!(page.contains(">2</td>") && !page.contains(">2+</td>"));

    // Groups and scopes beyond those that are shown.
    for (path, section, shown) in [
        ("/outbox?subscription=s", 1, 50),
        ("/queue?queue=d", 1, 50),
        ("/import?job=j&number=1", 1, 50),
        ("/overview", 3, 20),
    ] {
        let all = sections(&serving, path).await;
        let rows = all[section]["rows"].as_array().unwrap().len();
        assert_eq!(
            (rows, &all[section]["more"]),
            (shown, &json!(true)),
            "{path}"
        );
    }
    let page = serving.text("/", OPERATOR).await;
    assert!(
        page.contains("These are the first 20: there are more"),
        "{page}"
    );
    // Not one of the ten thousand that were looked at needs manual action; others may.
    assert!(page.contains("<strong>0+</strong>"), "{page}");
    let answer = serving.get("/api/v1/openapi.json", OPERATOR).await;
    assert!(answer.text().await.unwrap().contains("ends in _cut"));
}

#[tokio::test]
async fn a_button_names_all_messages_that_it_reaches_and_no_others() {
    let fixture = Fixture::installed().await;
    // Of the second consumer, one page of the list has the first tenants only. Some payloads were cut when they were stored, and some
    // ids came before with another payload.
    fixture
        .sql(
            "insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, due_at, received_at, holds_key, headers, payload)
             select n, 't' || n, 'a', 'x', n::text, '\\x01', 1, 'received', now(), now(), true, '{}', '\\x01' from generate_series(1, 150) n;
             insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, due_at, received_at, holds_key, headers, payload)
             select n, 't' || n, 'm', 'x', n::text, '\\x01', case when n <= 160 then 2 else 1 end, 'failed_final', now(), now(), n not between 161 and 165, '{}', '\\x01' from generate_series(151, 415) n",
        )
        .await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    let label = "Retry all 250 poison messages of m";
    let page = serving.text("/inbox?consumer=m", OPERATOR).await;
    assert!(page.contains(label), "{page}");
    // Also where it is on another page of the list, whose rows come first, and are not all.
    let path = "/inbox?consumer=m&after_consumer=z";
    let page = serving.text(path, OPERATOR).await;
    assert!(
        page.contains(label) && page.contains("Of m these are the first 200: there are more"),
        "{page}"
    );
    let all = sections(&serving, path).await;
    let rows = all[0]["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &all[0]["more"]), (200, &json!(true)));
    assert_eq!(
        (&rows[0]["retryable"], &rows[0]["retryable_cut"]),
        (&json!(250), &json!(false))
    );
    let retry = json!({"consumer": "m", "reason": "ticket 7", "confirm": "retry"});
    let done = serving.act("retry-all-messages", OPERATOR, &retry).await;
    assert_eq!(done.json::<Value>().await.unwrap()["result"], 250);
    // The others are retried one by one, or not at all.
    let page = serving.text("/inbox?consumer=m", OPERATOR).await;
    assert!(!page.contains("Retry all"), "{page}");
    let all = sections(&serving, "/inbox?consumer=m").await;
    let rows = all[0]["rows"].as_array().unwrap().iter();
    assert_eq!(
        rows.filter_map(|row| row["poison"].as_i64()).sum::<i64>(),
        15
    );
}

#[tokio::test]
async fn a_table_without_a_next_page_says_to_programs_too_that_there_is_more() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, due_at, received_at, holds_key, headers, payload)
             select n, '', 'c', 'x', n::text, '\\x01', 1, 'failed_final', now(), now(), true, '{}', '\\x01' from generate_series(1, 51) n;
             insert into pgonce.intent (fence, first_at, last_at, lease_until, attempts, status, tenant, scope, key, fingerprint)
             select 2, now(), now(), now() - interval '5 hours', 1, 'processing', '', 's', 'k' || n, '\\x02' from generate_series(1, 21) n;
             insert into pgonce.operator_act (acted_at, role, act, tenant, scope, key, reason, forced, before)
             select now(), 'x', 'y', '', 's', 'often', 'r', false, '{}' from generate_series(1, 120) n;
             insert into pgonce.job (id, created_at, priority, tenant, queue) select n, now(), 0, '', 'd' from generate_series(1, 1500) n;
             insert into pgonce.job_end (id, ended_at, status, attempts, tenant, queue, failure_code)
             select n, now(), 'dead', 3, '', 'd', 'c' from generate_series(1, 1500) n",
        )
        .await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    for (path, title, shown) in [
        ("/inbox", "Poison messages", 50),
        ("/operations?op=release&scope=s", "The first that match", 20),
        ("/find?q=often", "Intents", 100),
    ] {
        let all = sections(&serving, path).await;
        let mut tables = all.as_array().unwrap().iter();
        let table = tables.find(|table| table["title"] == title).unwrap();
        assert_eq!(table["rows"].as_array().unwrap().len(), shown, "{path}");
        assert_eq!(
            (&table["more"], &table["next"]),
            (&json!(true), &Value::Null),
            "{path}"
        );
        let page = serving.text(path, OPERATOR).await;
        assert!(
            page.contains("here are more") || page.contains("there may be more"),
            "{page}"
        );
    }
    let few = sections(&serving, "/find?q=k7").await;
    assert_eq!(few[0]["more"], json!(false), "{few}");
    // Counted further than a thousand, also on the button.
    let page = serving.text("/queue?queue=d", OPERATOR).await;
    assert!(page.contains("Retry all 1500 dead letters"), "{page}");
}

#[tokio::test]
async fn without_a_duplicate_none_was_suppressed() {
    let fixture = Fixture::installed().await;
    fixture
        .sql("select pgonce.fail('s', 'k', '\\x01', 1, false, 'c', 'no'); select pgonce._sample()")
        .await;
    let counted = fixture.json(&["suppression"]);
    assert_eq!(
        (&counted[0]["intents"], &counted[0]["suppressed"]),
        (&json!(1), &json!(0))
    );
    let sampled = "select suppressed from pgonce.sample";
    let sampled = fixture.client.query_one(sampled, &[]).await.unwrap();
    assert_eq!(sampled.get::<_, i64>(0), 0);
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    let all = sections(&serving, "/overview").await;
    assert_eq!(all[0]["rows"][0]["suppressed"], 0);
}
