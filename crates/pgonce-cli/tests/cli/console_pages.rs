//! Pages of the console beside intents and messages: queues, calls to providers, imports; and what operators do there.

use serde_json::{Value, json};

use crate::console::{CALL, OPERATOR, VIEWER, fill};
use crate::fixture::Fixture;
use crate::serve::{DEADLINE, Serving, TOKENS};

async fn sections(serving: &Serving, path: &str, token: &str) -> Value {
    let answer = serving.get(&format!("/api/v1{path}"), token).await;
    assert_eq!(answer.status(), 200, "{path}");
    answer.json::<Value>().await.unwrap()["sections"].take()
}

#[tokio::test]
async fn queues_show_what_they_hold_and_dead_letters_are_retried_and_cancelled_once() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let serving = Serving::of(&fixture, &["--redact", "card"], TOKENS);
    let all = sections(&serving, "/queue", VIEWER).await;
    let of_q = |all: &Value| -> Value {
        let rows = all[0]["rows"].as_array().unwrap().clone();
        rows.into_iter().find(|row| row["queue"] == "q").unwrap()
    };
    let row = of_q(&all);
    for (field, expected) in [("ready", 1), ("running", 1), ("dead", 2)] {
        assert_eq!(row[field], expected, "{row}");
    }
    assert_eq!(row["state"], "running");
    let one = sections(&serving, "/queue?queue=q", VIEWER).await;
    assert_eq!(one[1]["rows"][0]["n"], 2, "dead letters by error: {one}");

    // A viewer sees no payload, an operator sees it without what is redacted.
    let seen = serving.text("/job?id=1", VIEWER).await;
    assert!(
        !seen.contains("Payload") && !seen.contains("<form method=\"post\" action=\"/act/c"),
        "{seen}"
    );
    let seen = serving.text("/job?id=1", OPERATOR).await;
    assert!(
        seen.contains("Payload") && !seen.contains("4111 1111"),
        "{seen}"
    );

    let retry = json!({"queue": "q", "id": 1, "reason": "ticket 8"});
    let done = serving.act("retry-jobs", OPERATOR, &retry).await;
    assert_eq!(done.json::<Value>().await.unwrap()["result"], 1);
    let done = serving.act("retry-jobs", OPERATOR, &retry).await;
    assert_eq!(done.status(), 409, "it is no dead letter any more");
    assert_eq!(
        done.json::<Value>().await.unwrap()["code"],
        "nothing_changed"
    );
    let cancel = json!({"queue": "q", "id": 2, "reason": "ticket 9", "confirm": "cancel"});
    let done = serving.act("cancel-job", OPERATOR, &cancel).await;
    assert_eq!(done.json::<Value>().await.unwrap()["result"], true);
    let job = sections(&serving, "/job?id=2", VIEWER).await;
    assert_eq!(job[0]["rows"][0]["status"], "cancelled");
    assert_eq!(job[1]["rows"][0]["reason"], "ticket 9");

    assert_eq!(
        serving
            .act("pause-queue", OPERATOR, &json!({"queue": "q"}))
            .await
            .status(),
        200
    );
    let row = of_q(&sections(&serving, "/queue", VIEWER).await);
    assert_eq!(
        (&row["state"], &row["ready"], &row["dead"]),
        (&json!("paused"), &json!(2), &json!(0))
    );
    assert!(
        serving
            .text("/queue?queue=q", OPERATOR)
            .await
            .contains("Resume q")
    );
    assert_eq!(
        serving
            .act("resume-queue", OPERATOR, &json!({"queue": "q"}))
            .await
            .status(),
        200
    );
    fixture
        .sql(
            "insert into pgonce.job (id, created_at, priority, tenant, queue) values (9, now(), 0, '', 'q');
             insert into pgonce.job_end (id, ended_at, status, attempts, tenant, queue) values (9, now(), 'dead', 3, '', 'q')",
        )
        .await;
    let confirmed = json!({"queue": "q", "reason": "all of them", "confirm": "retry"});
    for status in [200, 409] {
        assert_eq!(
            serving
                .act("retry-all-jobs", OPERATOR, &confirmed)
                .await
                .status(),
            status
        );
    }
}

#[tokio::test]
async fn a_list_goes_on_where_the_last_page_ended_by_the_address_that_the_api_gives() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "insert into pgonce.job (id, created_at, priority, tenant, queue) select n, now(), 0, '', 'q' from generate_series(1, 120) n;
             insert into pgonce.job_end (id, ended_at, status, attempts, tenant, queue) select n, now(), 'dead', 3, '', 'q' from generate_series(1, 120) n;
             insert into pgonce.external_call (effect_key, fence, requested_at, sent_at, deadline_at, status, decides, tenant, scope, key, step, provider, digest)
             select gen_random_uuid(), 1, now(), now(), now() - interval '1 day' - (n / 3) * interval '1 hour', 'unknown', true, '', 's', n::text, 'x', 'p', '\\x01' from generate_series(1, 120) n;
             insert into pgonce.import (tenant, job, number, source, settings, state, runner, backend, leased_until, started_at)
             select '', 'j', n, 'f', '{}', 'done', gen_random_uuid(), 1, now(), now() - (n / 3) * interval '1 hour' from generate_series(1, 120) n;
             insert into pgonce.import_row select '', 'j', 1, n, n, 'failed', null, null, 'c', 'r' from generate_series(1, 120) n;
             insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint)
             select 1, now(), now() + interval '1 day', 1, case when n % 2 = 0 then 'succeeded' else 'failed_final' end::pgonce.status,
                    case when n % 3 = 0 then 't' else '' end, 's' || n % 5, 'k' || n, '\\x02' from generate_series(1, 240) n",
        )
        .await;
    let serving = Serving::of(&fixture, &[], "");
    for (path, section, id) in [
        ("/queue?queue=q", 2, "id"),
        ("/external", 1, "effect_key"),
        ("/external?status=all", 1, "effect_key"),
        ("/imports", 0, "number"),
        ("/import?job=j&number=1", 2, "row"),
        ("/intents?q=state:failed_final", 0, "key"),
        ("/intents?q=scope:s*+state:succeeded", 0, "key"),
    ] {
        let mut next = format!("/api/v1{path}");
        let mut seen = std::collections::BTreeSet::new();
        let mut pages = 0;
        loop {
            let answer = serving.get(&next, "").await.json::<Value>().await.unwrap();
            let table = &answer["sections"][section];
            let rows = table["rows"].as_array().unwrap();
            assert!(rows.len() <= 50, "{path}");
            for row in rows {
                assert!(seen.insert(row[id].to_string()), "{path}: twice {row}");
            }
            pages += 1;
            match table["next"].as_str() {
                Some(address) => next = address.to_owned(),
                None => break,
            }
        }
        assert_eq!((seen.len(), pages), (120, 3), "{path}");
    }
}

#[tokio::test]
async fn a_call_with_an_unknown_outcome_waits_for_an_operator_and_is_settled_once() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let serving = Serving::of(&fixture, &["--redact", "card"], TOKENS);
    let waiting = sections(&serving, "/external", VIEWER).await;
    assert_eq!(waiting[1]["rows"][0]["effect_key"], CALL);
    let intent = serving.text("/intent?scope=s&key=stuck", VIEWER).await;
    assert!(
        intent.contains("call &lt;script&gt;")
            && intent.contains(&format!("sent once, effect key {CALL}")),
        "its timeline has the call: {intent}"
    );
    let path = format!("/call?effect_key={CALL}");
    let seen = serving.text(&path, VIEWER).await;
    assert!(
        seen.contains("It may have happened, and its deadline is over")
            && !seen.contains("Send it again"),
        "{seen}"
    );
    let seen = serving.text(&path, OPERATOR).await;
    assert!(
        seen.contains("Send it again") && seen.contains("Request") && !seen.contains("4111 1111"),
        "{seen}"
    );
    let call = |confirm: &str| json!({"effect_key": CALL, "outcome": "confirmed", "reason": "on the statement", "reference": "ch_1", "answer": "{}", "confirm": confirm});
    assert_eq!(
        serving
            .act("settle-call", OPERATOR, &call("yes"))
            .await
            .status(),
        422
    );
    let forced = json!({"effect_key": CALL, "outcome": "resend", "reason": "r", "confirm": "settle", "force": true});
    assert_eq!(
        serving.act("settle-call", OPERATOR, &forced).await.status(),
        403,
        "force is for admins"
    );
    let done = serving.act("settle-call", OPERATOR, &call("settle")).await;
    assert_eq!(done.status(), 200, "{:?}", done.text().await);
    let seen = serving.text(&path, VIEWER).await;
    assert!(
        seen.contains("It happened: ") && seen.contains("on the statement"),
        "{seen}"
    );
    assert_eq!(
        sections(&serving, "/external", VIEWER).await[1]["rows"],
        json!([])
    );
    let other = json!({"effect_key": CALL, "outcome": "failed", "code": "c", "reason": "r", "confirm": "settle"});
    assert_eq!(
        serving.act("settle-call", OPERATOR, &other).await.status(),
        409,
        "it was decided otherwise"
    );
    for wrong in ["nothing", "0190f5a2-7c3e-7000-8000-00000000000f"] {
        let page = serving
            .text(&format!("/call?effect_key={wrong}"), VIEWER)
            .await;
        assert!(page.contains("There is no such call"), "{page}");
    }
}

#[tokio::test]
async fn an_import_shows_its_progress_and_rejects_and_can_be_cancelled() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let serving = Serving::of(&fixture, &[], TOKENS);
    assert_eq!(
        sections(&serving, "/imports", VIEWER).await[0]["rows"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let one = sections(&serving, "/import?job=j&number=1", VIEWER).await;
    assert_eq!(
        (&one[0]["rows"][0]["state"], &one[2]["rows"][0]["row"]),
        (&json!("stopped"), &json!(1))
    );
    assert!(
        !serving
            .text("/import?job=j&number=1", VIEWER)
            .await
            .contains("Cancel the imports")
    );
    assert!(
        serving
            .text("/import?job=j&number=1", OPERATOR)
            .await
            .contains("Cancel the imports")
    );
    let cancel = json!({"job": "j"});
    let done = serving.act("cancel-import", OPERATOR, &cancel).await;
    assert_eq!(done.json::<Value>().await.unwrap()["result"], 1);
    let page = serving.text("/import?job=j&number=1", OPERATOR).await;
    assert!(
        page.contains("It was cancelled") && !page.contains("Cancel the imports"),
        "{page}"
    );
}

#[tokio::test]
async fn an_operation_acts_on_as_many_intents_as_were_confirmed_each_audited() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "select pgonce.fail('s', 'k' || n, '\\x01', 1, false, case when n <= 250 then 'declined' else 'other' end, 'no') from generate_series(1, 260) n",
        )
        .await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    let of = "op=retry&scope=s&failure=declined";
    let page = serving.text(&format!("/operations?{of}"), OPERATOR).await;
    assert!(
        page.contains("250 intents match") && page.contains("Type 250 to confirm"),
        "{page}"
    );
    assert!(
        !serving
            .text(&format!("/operations?{of}"), VIEWER)
            .await
            .contains("to confirm")
    );
    let bulk = |reason: &str, confirm: &str| json!({"op": "retry", "scope": "s", "failure": "declined", "reason": reason, "confirm": confirm});
    assert_eq!(
        serving
            .act("bulk", OPERATOR, &bulk("", "250"))
            .await
            .status(),
        422,
        "a reason is needed"
    );
    assert_eq!(
        serving
            .act("bulk", OPERATOR, &bulk("r", "249"))
            .await
            .status(),
        409,
        "another number than there are"
    );
    for wrong in [
        json!({"op": "evict", "scope": "s", "reason": "r"}),
        json!({"op": "retry", "reason": "r"}),
    ] {
        assert_eq!(
            serving.act("bulk", OPERATOR, &wrong).await.status(),
            422,
            "{wrong}"
        );
    }
    let started = serving
        .act("bulk", OPERATOR, &bulk("ticket 7", "250"))
        .await;
    assert_eq!(
        started.json::<Value>().await.unwrap()["result"],
        json!({"id": 1, "total": 250})
    );
    let state = async || sections(&serving, "/operations", VIEWER).await[0]["rows"][0].clone();
    let finished = async || state().await["state"] == "finished";
    pgonce_testkit::wait_until("the operation", DEADLINE, finished)
        .await
        .unwrap();
    let row = state().await;
    assert_eq!(
        (&row["done"], &row["refused"], &row["person"]),
        (&json!(250), &json!(0), &json!("otto"))
    );
    let audited = "select count(*), count(distinct key) from pgonce.operator_act where act = 'retry' and reason = 'ticket 7' and person = 'otto'";
    let audited = fixture.client.query_one(audited, &[]).await.unwrap();
    assert_eq!(
        (audited.get::<_, i64>(0), audited.get::<_, i64>(1)),
        (250, 250)
    );
    let left = "select count(*) from pgonce.intent where status = 'failed_final'";
    let left = fixture.client.query_one(left, &[]).await.unwrap();
    assert_eq!(left.get::<_, i64>(0), 10, "others are as they were");
    // One that has ended cannot be stopped; one that is not known neither.
    let stopped = serving
        .act("cancel-bulk", OPERATOR, &json!({"id": 1}))
        .await;
    assert_eq!(stopped.status(), 409);
    assert_eq!(
        serving
            .act("cancel-bulk", OPERATOR, &json!({"id": 9}))
            .await
            .status(),
        404
    );
}

#[tokio::test]
async fn an_operation_is_stopped_before_its_next_intent() {
    let fixture = Fixture::installed().await;
    fixture
        .sql("select pgonce.fail('s', 'k' || n, '\\x01', 1, false, 'c', 'no') from generate_series(1, 200) n")
        .await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    // The first intent is held by somebody: the operation waits there until it is stopped.
    let (holder, connection) =
        tokio_postgres::connect(&fixture.database.url(), tokio_postgres::NoTls)
            .await
            .unwrap();
    tokio::spawn(connection);
    holder
        .batch_execute("begin; select from pgonce.intent where key = 'k1' for update")
        .await
        .unwrap();
    let bulk = json!({"op": "retry", "scope": "s", "reason": "r", "confirm": "200"});
    assert_eq!(serving.act("bulk", OPERATOR, &bulk).await.status(), 200);
    let waits = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";
    let waiting = async || {
        fixture
            .client
            .query_one(waits, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    };
    pgonce_testkit::wait_until("the operation waits", DEADLINE, waiting)
        .await
        .unwrap();
    let stopped = serving
        .act("cancel-bulk", OPERATOR, &json!({"id": 1}))
        .await;
    assert_eq!(stopped.json::<Value>().await.unwrap()["result"], true);
    holder.batch_execute("rollback").await.unwrap();
    let state = async || sections(&serving, "/operations", VIEWER).await[0]["rows"][0].clone();
    let ended = async || state().await["state"] == "cancelled";
    pgonce_testkit::wait_until("it is cancelled", DEADLINE, ended)
        .await
        .unwrap();
    assert_eq!(state().await["done"], 1, "the one that was under way");
}

#[tokio::test]
async fn the_page_of_an_intent_has_the_verdict_of_sql() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "select pgonce.define_scope('refuse', '1 day', p_stale => 'refuse');
             select pgonce.define_scope('hold', '1 day', p_stale => 'hold');
             select pgonce.claim(s, 'k', '\\x01', '1 minute') from unnest(array['refuse', 'hold']) s;
             update pgonce.intent set lease_until = pgonce.now() - interval '1 second';
             select pgonce.claim('refuse', 'k', '\\x01', '1 minute');
             update pgonce.intent set failure_code = 'needs_manual_action', failure_message = 'the probe says: unknown' where scope = 'hold';
             select pgonce.fail('s', 'refused', '\\x01', 1, false, 'c', 'no'); select pgonce.fail('s', 'again', '\\x01', 1, true, 'c', 'no');
             select pgonce.claim('s', 'alive', '\\x01', '1 hour');
             insert into pgonce.intent (fence, first_at, expires_at, gone_at, attempts, status, tenant, scope, key, fingerprint)
             select 1, now(), at, case when k = 'gone' then now() end, 1, 'succeeded', '', 's', k, '\\x01'
               from (values ('done', now() + interval '1 day'), ('over', now() - interval '1 day'), ('gone', now() + interval '1 day')) v (k, at)",
        )
        .await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    for (scope, key, mood, part) in [
        ("refuse", "k", "bad", "it was given up: "),
        ("hold", "k", "bad", "an operator must decide: "),
        ("s", "refused", "bad", ""),
        ("s", "again", "warn", ""),
        ("s", "alive", "warn", ""),
        ("s", "done", "good", ""),
        ("s", "over", "good", "Its retention is over"),
        ("s", "gone", "muted", ""),
    ] {
        let verdict =
            "select pgonce._verdict(i) from pgonce.intent i where scope = $1 and key = $2";
        let row = fixture.client.query_one(verdict, &[&scope, &key]).await;
        let verdict: String = row.unwrap().get(0);
        assert!(verdict.contains(part), "{scope} {key}: {verdict}");
        let page = serving
            .text(&format!("/intent?scope={scope}&key={key}"), VIEWER)
            .await;
        let shown = format!("<p class=\"verdict {mood}\">{verdict}</p>");
        assert!(page.contains(&shown), "{scope} {key}: {shown} {page}");
    }
}
