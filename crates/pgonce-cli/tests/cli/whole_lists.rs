//! A list has what its filter matches, however much else there is; and where it looked at a part only, it says so.

use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::serve::Serving;

/// More than one list looks at.
const MANY: u32 = 20_500;

fn ids(rows: &Value) -> Vec<i64> {
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row["id"].as_i64().unwrap()).collect()
}

/// Every row of a list of the console, page by page.
async fn pages(serving: &Serving, path: &str, section: usize) -> Vec<Value> {
    let (mut next, mut all) = (format!("/api/v1{path}"), Vec::new());
    loop {
        let answer = serving.get(&next, "").await;
        assert_eq!(answer.status(), 200, "{next}");
        let said = answer.json::<Value>().await.unwrap();
        let table = &said["sections"][section];
        all.extend(table["rows"].as_array().unwrap().iter().cloned());
        assert_eq!(table["more"], table["next"].is_string(), "{path}");
        match table["next"].as_str() {
            Some(address) => next = address.to_owned(),
            None => return all,
        }
    }
}

#[tokio::test]
async fn unfinished_intents_of_a_scope_are_found_behind_very_many_older_ones_of_another() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(&format!(
            "insert into pgonce.intent (fence, first_at, last_at, lease_until, attempts, status, tenant, scope, key, fingerprint)
             select 2, now(), now(), now() - interval '5 hours', 1, 'processing', '', 'other', 'o' || n, '\\x02' from generate_series(1, {MANY}) n;
             insert into pgonce.intent (fence, first_at, last_at, lease_until, attempts, status, tenant, scope, key, fingerprint)
             select 2, now(), now(), now() - interval '1 hour', case n when 7 then 2 else 1 end, 'processing', '', 's', 'k' || n, '\\x02' from generate_series(1, 120) n;
             insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint)
             select 1, now(), now() + interval '1 day', 1, 'succeeded', '', 's', 'done' || n, '\\x02' from generate_series(1, {MANY}) n;
             insert into pgonce.attempt (fence, started_at, ended_at, followed_at, attempt, tenant, scope, key, outcome)
             select n, now(), now(), now(), 2, '', 'other', 'o' || n, 'failed_retryable' from generate_series(1, 10100) n;
             insert into pgonce.attempt (fence, started_at, ended_at, followed_at, attempt, tenant, scope, key, outcome)
             values (1, now(), now(), now(), 1, '', 's', 'k7', 'failed_retryable')"
        ))
        .await;
    fixture.sql("vacuum analyze").await;
    let count = |args: &str| {
        let args: Vec<&str> = args.split(' ').collect();
        fixture.json(&args).as_array().unwrap().len()
    };
    assert_eq!(count("intent stuck --scope s --limit 1000"), 120);
    assert_eq!(count("intent list s --status processing --limit 1000"), 120);
    assert_eq!(count("intent list s --status processing --after k98"), 1);
    assert_eq!(count("intent list s --limit 100000"), MANY as usize + 120);
    assert_eq!(count("intent retried --scope s"), 1);
    // Very many of one scope, in the order of keys all the same.
    let first = fixture.json(&["intent", "list", "other", "--status", "processing"]);
    assert_eq!(
        (&first[0]["key"], &first[99]["key"]),
        (&json!("o1"), &json!("o10087"))
    );
    // What was not looked at is not said not to be there.
    let run = fixture.run(&["intent", "list", "s", "--status", "failed_final"]);
    assert!(
        run.out.contains("None of those that were looked at")
            && run.err.contains("To look further: --after done"),
        "{run:?}"
    );

    let serving = Serving::of(&fixture, &["--roles", "console"], "");
    for state in ["processing", "stuck"] {
        let all = pages(&serving, &format!("/intents?q=state:{state}+scope:s"), 0).await;
        let mut keys: Vec<_> = all.iter().map(|row| row["key"].as_str().unwrap()).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!((all.len(), keys.len()), (120, 120), "{state}");
    }
    let found = serving.text("/operations?op=release&scope=s", "").await;
    assert!(found.contains("120 intents match"), "{found}");
}

#[tokio::test]
async fn jobs_are_listed_newest_first_by_tenant_state_and_group_behind_very_many_others() {
    let fixture = Fixture::installed().await;
    // Of the tenant a: 4 dead letters and 9000 of a group, older than all of the others; one that was cancelled long ago; five that run.
    fixture
        .sql(&format!(
            "select pgonce.define_queue('q');
             insert into pgonce.job (id, created_at, priority, tenant, queue, group_name)
             select n, now(), 0, case when n <= 9004 then 'a' else '' end, 'q', case when n between 5 and 9004 then 'g' end from generate_series(1, 10000 + 2 * {MANY}) n;
             insert into pgonce.job_end (id, ended_at, status, attempts, tenant, queue)
             select n, now(), case when n <= 4 or n between 9010 and 9999 then 'dead' when n = 9005 then 'cancelled' else 'succeeded' end::pgonce.job_end_status, 3,
                    case when n <= 9004 then 'a' else '' end, 'q' from generate_series(1, 10000 + {MANY}) n;
             insert into pgonce.job_live (id, state, priority, tenant, queue, due_at)
             select n, case when n <= 10005 + {MANY} then 'running' else 'ready' end::pgonce.job_state, (n % 3)::smallint, '', 'q', case when n <= 10005 + {MANY} then now() end
               from generate_series(10001 + {MANY}, 10000 + 2 * {MANY}) n"
        ))
        .await;
    fixture.sql("vacuum analyze").await;
    let list = |args: &str| {
        let args: Vec<&str> = args.split(' ').collect();
        ids(&fixture.json(&[&["job", "list"][..], &args].concat()))
    };
    let last = 10_000 + 2 * i64::from(MANY);
    assert_eq!(list("--status dead --tenant a"), [4, 3, 2, 1]);
    assert_eq!(list("--status dead --tenant a --before 3"), [2, 1]);
    assert_eq!(list("q --status dead --limit 2"), [9999, 9998]);
    let ready = list("--status ready --limit 50");
    assert_eq!((ready[0], ready.len()), (last, 50));
    assert!(ready.is_sorted_by(|a, b| a > b), "{ready:?}");
    let next = list(&format!("--status ready --limit 50 --before {}", ready[49]));
    assert_eq!(next[0], ready[49] - 1);
    assert_eq!(list("--status running").len(), 5);
    let group = list("--group g --tenant a --limit 100000");
    assert!(
        group.len() == 9000 && group.is_sorted_by(|a, b| a > b),
        "{}",
        group.len()
    );
    assert_eq!(
        list("--group g --tenant a --limit 2 --before 9000"),
        [8999, 8998]
    );
    // One that is further back is found where the note says.
    let run = fixture.run(&["job", "list", "--status", "cancelled"]);
    assert!(
        run.out.contains("None of those that were looked at"),
        "{run:?}"
    );
    let (_, before) = run.err.split_once("To look further: --before ").unwrap();
    assert_eq!(
        list(&format!("--status cancelled --before {}", before.trim())),
        [9005]
    );
    let none = fixture.run(&["job", "list", "--status", "cancelled", "--tenant", "a"]);
    assert!(
        none.out.contains("No jobs.") && none.err.is_empty(),
        "{none:?}"
    );
}

#[tokio::test]
async fn what_is_old_or_of_another_tenant_is_listed_behind_very_many_others() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(&format!(
            "insert into pgonce.ledger_group (tenant, source, operation, recorded_at, pending, digest, accounts, amounts)
             select case n when 2 then 'b' else '' end, 'o', lpad(n::text, 6, '0'), now() + n * interval '1 second', true, '\\x01', array['a1', 'a2'], array[1, -1] from generate_series(1, 15000) n;
             insert into pgonce.ledger_pending (tenant, source, operation, fence, pick, state)
             select case n when 2 then 'b' else '' end, 'o', lpad(n::text, 6, '0'), 1, 0, case n when 1 then 'pending' else 'posted' end from generate_series(1, 15000) n;
             insert into pgonce.external_call (effect_key, fence, requested_at, sent_at, deadline_at, status, decides, tenant, scope, key, step, provider, digest)
             select md5(n::text)::uuid, 1, now() + n * interval '1 second', now(), now() - interval '1 day', case when n % 2 = 0 then 'unknown' else 'confirmed' end::pgonce.external_status,
                    true, case when n <= 2 then 'b' else '' end, 's', n::text, 'x', 'p', '\\x01' from generate_series(1, 2 * {MANY}) n;
             insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, due_at, received_at, holds_key, headers, payload)
             select n, '', 'c', 'x', n::text, '\\x01', 1, case n when 7 then 'processing' else 'received' end::pgonce.inbox_status,
                    now() + case n when 7 then interval '1 minute' else interval '0' end, now(), true, '{{}}', '\\x01' from generate_series(1, {MANY}) n;
             insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, due_at, received_at, skipped_at, holds_key, headers, payload)
             select {MANY} + n, '', 'skips', 'x', n::text, '\\x01', 1, 'failed_final', now(), now(), now(), false, '{{}}', '\\x01' from generate_series(1, 5) n;
             select pgonce.create_subscription('s');
             insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, attempts, parked_at, created_at, size, message_id, topic, type, headers)
             select case n when 10500 then 'b' else '' end, 's', 'u' || n, n, 1, 'dead', 9, now(), now(), 2, gen_random_uuid(), 't', 'y', '{{}}' from generate_series(1, 10500) n"
        ))
        .await;
    fixture.sql("vacuum analyze").await;
    let count = |args: &str| {
        let args: Vec<&str> = args.split(' ').collect();
        fixture.json(&args).as_array().unwrap().len()
    };
    for (args, expected) in [
        ("ledger groups --state pending", 1),
        ("ledger groups --tenant b", 1),
        ("ledger groups --state posted --tenant b", 1),
        ("ledger groups --limit 100000", 14_999),
        ("external list --tenant b", 2),
        ("external list --status needs_operator --tenant b", 1),
        ("external list --status open --tenant b", 1),
        ("inbox list c --status processing", 1),
        (
            "inbox list c --status received --limit 100000",
            MANY as usize - 1,
        ),
        ("outbox list s --tenant b", 1),
        ("outbox list s --subject u10400", 1),
        ("outbox list s --limit 100000", 10_500),
    ] {
        assert_eq!(count(args), expected, "{args}");
    }
    // The oldest first, also of those that are looked at from the newest.
    let skipped = fixture.json(&[
        "inbox",
        "list",
        "skips",
        "--status",
        "failed_final",
        "--limit",
        "2",
    ]);
    assert_eq!(
        (&skipped[0]["message_id"], &skipped[1]["message_id"]),
        (&json!("1"), &json!("2"))
    );
    // A list that is full, and was all looked at, has nothing to add.
    for args in [
        &[
            "external", "list", "--status", "open", "--tenant", "b", "--limit", "1",
        ][..],
        &[
            "inbox",
            "list",
            "skips",
            "--status",
            "failed_final",
            "--limit",
            "2",
        ],
        &["ledger", "groups", "--limit", "1"],
    ] {
        let run = fixture.run(args);
        assert!(run.code == 0 && run.err.is_empty(), "{args:?}: {run:?}");
    }
    let newest = fixture.json(&["ledger", "groups", "--limit", "1"]);
    assert_eq!(newest[0]["operation"], "015000");
    fixture
        .sql(&format!(
            "insert into pgonce.ledger_group (tenant, source, operation, recorded_at, pending, digest, accounts, amounts)
             select '', 'o', 'z' || n, now(), false, '\\x01', array['a1', 'a2'], array[1, -1] from generate_series(1, {MANY}) n"
        ))
        .await;
    for args in [
        &["ledger", "groups", "--limit", "100000"][..],
        &["inbox", "list", "c", "--status", "processed"],
        &["external", "list", "--status", "failed"],
        // Full, and in another order than they were looked at: what comes first may be among the others.
        &["ledger", "groups"],
        &["inbox", "list", "c"],
        &["inbox", "list", "c", "--status", "received"],
        &["external", "list", "--status", "needs_operator"],
        &["external", "list", "--status", "open"],
    ] {
        let run = fixture.run(args);
        assert!(
            run.code == 0 && run.err.contains("were looked at") && !run.out.contains("No "),
            "{args:?}: {} {}",
            run.err,
            run.out.len()
        );
    }
}

#[tokio::test]
async fn every_list_of_the_console_goes_on_or_says_that_there_is_more() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "insert into pgonce.operator_act (acted_at, role, act, tenant, scope, key, reason, forced, before)
             select now() - (n / 7) * interval '1 second', 'x', 'y', '', 's', n::text, 'r', false, '{}' from generate_series(1, 450) n;
             select pgonce.define_scope('scope-' || n, '7 days') from generate_series(1, 450) n;
             select pgonce.define_queue('q' || n) from generate_series(1, 450) n;
             select pgonce.create_subscription('s' || n) from generate_series(1, 210) n;
             insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, due_at, received_at, holds_key, headers, payload)
             select n, 't' || n % 2, 'c' || n / 2, 'x', n::text, '\\x01', 1, 'received', now(), now(), true, '{}', '\\x01' from generate_series(2, 451) n;
             insert into pgonce.job_schedule select '', 'n' || n, '* * * * *', 'UTC', 'q1', null, now(), now() from generate_series(1, 120) n",
        )
        .await;
    let serving = Serving::of(&fixture, &["--roles", "console"], "");
    let count = |of: &'static str| {
        let sql = format!("select count(*) from {of}");
        let client = &fixture.client;
        async move { client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0) }
    };
    for (path, of) in [
        ("/audit", "pgonce.operator_act"),
        ("/scopes", "pgonce.scope"),
        ("/queue", "pgonce.queues"),
        ("/outbox", "pgonce.outbox_subscription"),
        ("/inbox", "pgonce.inbox_backlog"),
    ] {
        let all = pages(&serving, path, 0).await;
        let mut different: Vec<_> = all.iter().map(Value::to_string).collect();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), all.len(), "{path}");
        assert_eq!(all.len() as i64, count(of).await, "{path}");
    }
    // One that is on another page of the list has its acts.
    let page = serving.text("/queue?queue=q99", "").await;
    assert!(page.contains("Pause q99"), "{page}");
    let page = serving.text("/queue", "").await;
    assert!(
        page.contains("These are the first 100: there are more"),
        "{page}"
    );
    let answer = serving.get("/api/v1/queue", "").await;
    let said: Value = answer.json().await.unwrap();
    assert_eq!(
        (&said["sections"][1]["next"], &said["sections"][1]["more"]),
        (&Value::Null, &json!(true))
    );
    let page = serving.text("/", "").await;
    assert!(
        page.contains("more subscriptions than this page looks at"),
        "{page}"
    );
}

#[tokio::test]
async fn an_intent_whose_record_operators_removed_may_have_happened() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint)
             values (1, now(), now() + interval '1 day', 1, 'succeeded', '', 's', 'k', '\\x02');
             select pgonce.intervene('evict', 's', 'k', 'ticket 7', true);
             select pgonce.external_send('s', 'called', fence, 'charge', 'bank', '\\x01'), pgonce.release('s', 'called', fence, p_forget => true)
               from pgonce.claim('s', 'called', '\\x01', '1 minute')",
        )
        .await;
    let serving = Serving::of(&fixture, &["--roles", "console"], "");
    let page = serving.text("/intent?scope=s&key=k", "").await;
    assert!(
        page.contains("it may have happened")
            && page.contains("ticket 7")
            && !page.contains("it has not happened"),
        "{page}"
    );
    let page = serving.text("/intent?scope=s&key=called", "").await;
    assert!(
        page.contains("it may have happened") && !page.contains("it has not happened"),
        "{page}"
    );
    let page = serving.text("/intent?scope=s&key=other", "").await;
    assert!(page.contains("it has not happened"), "{page}");
    // What another region did may be on its way.
    fixture
        .sql("insert into pgonce.region (id, name, is_self, joined_at) values (1, 'eu', true, now()), (2, 'us', false, now())")
        .await;
    let page = serving.text("/intent?scope=s&key=other", "").await;
    let show = fixture.run(&["intent", "show", "s", "other"]);
    for words in [&page, &show.err] {
        assert!(
            words.contains("it may have happened in another")
                && !words.contains("has not happened"),
            "{words}"
        );
    }
}
