//! Acts of the console: none reaches further than it names, and none is called done that changed nothing.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::console::{ADMIN, CALL, OPERATOR, fill, sign_in, url_encoded};
use crate::fixture::Fixture;
use crate::serve::{Serving, TOKENS};

/// The status and the code of what the API answers.
async fn refused(serving: &Serving, act: &str, body: &Value) -> (u16, String, String) {
    let answer = serving.act(act, ADMIN, body).await;
    let status = answer.status().as_u16();
    let said: Value = answer.json().await.unwrap();
    let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
    (status, text("code"), text("title"))
}

async fn count(fixture: &Fixture, of: &str) -> i64 {
    let sql = format!("select count(*) from {of}");
    fixture.client.query_one(&sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn an_act_that_changed_nothing_is_not_called_done() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let acts = count(&fixture, "pgonce.operator_act").await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    let job = json!({"queue": "q", "id": 99_999_999, "reason": "r", "confirm": "cancel"});
    // One that is there, in another queue than the one that is named.
    let other = json!({"queue": "mail", "id": 1, "reason": "r", "confirm": "cancel"});
    let skip = |of: &str| json!({"subscription": of, "seq": 77, "reason": "r", "confirm": "skip"});
    for (act, body) in [
        ("cancel-job", job),
        ("cancel-job", other),
        (
            "retry-jobs",
            json!({"queue": "q", "id": 99_999_999, "reason": "r"}),
        ),
        ("skip", skip("s")),
        ("skip", skip("unknown")),
        (
            "skip-message",
            json!({"consumer": "c", "seq": 77, "reason": "r", "confirm": "skip"}),
        ),
        (
            "retry-messages",
            json!({"consumer": "c", "seq": 77, "reason": "r"}),
        ),
        (
            "retry-all-messages",
            json!({"consumer": "unknown", "reason": "r", "confirm": "retry"}),
        ),
        (
            "redrive",
            json!({"subscription": "s", "subject": "unknown"}),
        ),
        ("cancel-import", json!({"job": "unknown"})),
    ] {
        let (status, code, title) = refused(&serving, act, &body).await;
        assert_eq!(
            (status, code.as_str()),
            (409, "nothing_changed"),
            "{act} {body}"
        );
        assert!(title.contains("nothing was changed"), "{title}");
    }
    // A queue that is not known is not made by pausing it.
    let before = count(&fixture, "pgonce.job_queue").await;
    for (act, body) in [
        ("pause-queue", json!({"queue": "unknown"})),
        ("resume-queue", json!({"queue": "unknown"})),
        (
            "retry-all-jobs",
            json!({"queue": "unknown", "reason": "r", "confirm": "retry"}),
        ),
    ] {
        let (status, code, _) = refused(&serving, act, &body).await;
        assert_eq!((status, code.as_str()), (404, "unknown_queue"), "{act}");
    }
    assert_eq!(count(&fixture, "pgonce.job_queue").await, before);
    assert_eq!(count(&fixture, "pgonce.operator_act").await, acts);

    let (cookie, csrf) = sign_in(&serving, OPERATOR).await;
    let body = format!("csrf={csrf}&queue=q&id=99999999&reason=r&confirm=cancel");
    let answer = serving.form("/act/cancel-job", &cookie, &body).await;
    assert_eq!(answer.status(), StatusCode::CONFLICT);
    let page = answer.text().await.unwrap();
    assert!(
        page.contains("That was not done") && page.contains("nothing was changed"),
        "{page}"
    );
    // What is done is said by the name of an act, never by words of an address.
    let said = serving
        .text("/scopes?done=your+password+has+expired", ADMIN)
        .await;
    assert!(!said.contains("password"), "{said}");
    let said = serving.text("/scopes?done=cancel-job", ADMIN).await;
    assert!(said.contains("Done: cancel-job."), "{said}");
}

#[tokio::test]
async fn a_queue_that_only_jobs_far_behind_others_know_is_paused_and_its_jobs_are_retried() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "insert into pgonce.job (id, created_at, priority, tenant, queue)
             select n, now(), 0, '', case when n <= 2 then 'quiet' else 'busy' end from generate_series(1, 40000) n;
             insert into pgonce.job_live (id, due_at, state, priority, tenant, queue)
             select n, now() + interval '1 day' - n * interval '1 second', 'scheduled', 0, '', case when n <= 2 then 'quiet' else 'busy' end
               from generate_series(1, 10010) n",
        )
        .await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    let retry = json!({"queue": "quiet", "id": 1, "reason": "r"});
    let done = serving.act("retry-jobs", OPERATOR, &retry).await;
    assert_eq!(done.json::<Value>().await.unwrap()["result"], 1);
    fixture
        .sql("delete from pgonce.job_live where id = 1")
        .await;
    let pause = json!({"queue": "quiet"});
    let done = serving.act("pause-queue", OPERATOR, &pause).await;
    assert_eq!(done.status(), StatusCode::OK);
    assert_eq!(
        count(
            &fixture,
            "pgonce.job_queue where queue = 'quiet' and paused"
        )
        .await,
        1
    );
    fixture
        .sql("delete from pgonce.job_queue where queue = 'quiet'")
        .await;
    fixture.ok(&["queue", "pause", "quiet"]);
    assert_eq!(fixture.run(&["queue", "pause", "none"]).code, 7);
}

#[tokio::test]
async fn an_act_whose_commit_had_no_reply_may_have_been_done_and_the_page_says_so() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    fixture
        .sql(
            "create function public.end_session() returns trigger language plpgsql as 'begin perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(60); return null; end';
             create constraint trigger lost_reply after insert on pgonce.operator_act deferrable initially deferred for each row execute function public.end_session()",
        )
        .await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    let settle = json!({"scope": "s", "key": "stuck", "reason": "r", "answer": "{}"});
    let (status, code, title) = refused(&serving, "settle", &settle).await;
    assert_eq!((status, code.as_str()), (503, "08007"), "{title}");
    assert!(title.contains("may have been done"), "{title}");
    let (cookie, csrf) = sign_in(&serving, OPERATOR).await;
    let body = format!("csrf={csrf}&scope=s&key=stuck&reason=r");
    let answer = serving.form("/act/settle", &cookie, &body).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let page = answer.text().await.unwrap();
    assert!(
        page.contains("It may have been done")
            && page.contains("Look first")
            && page.contains("/intent?scope=s&amp;key=stuck")
            && !page.contains("not done"),
        "{page}"
    );
}

#[tokio::test]
async fn an_act_reaches_what_it_names_and_all_is_another_act_that_is_confirmed() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "select pgonce.define_queue('q');
             insert into pgonce.job (id, created_at, priority, tenant, queue) select n, now(), 0, 'b', 'q' from generate_series(1, 12) n;
             insert into pgonce.job_end (id, ended_at, status, attempts, tenant, queue) select n, now(), 'dead', 3, 'b', 'q' from generate_series(1, 12) n;
             insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, received_at, holds_key, headers, payload)
             select n, '', 'c', 's', n, '\\x01', 1, 'failed_final', now(), true, '{}', '\\x01' from generate_series(1, 1300) n;
             select pgonce.create_subscription('s');
             insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, attempts, parked_at, created_at, size, message_id, topic, type, headers)
             select case n when 3 then 'b' else '' end, 's', case n when 3 then 'u2' else 'u' || n end, n, 1, 'dead', 9, now(), now(), 2, gen_random_uuid(), 't', 'y', '{}' from generate_series(1, 3) n",
        )
        .await;
    let acts = count(&fixture, "pgonce.operator_act").await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    // Without what says which, and with a name that is not one of its fields.
    for (act, body, field) in [
        (
            "retry-jobs",
            json!({"queue": "q", "tenant": "b", "reason": "x"}),
            "id",
        ),
        (
            "retry-jobs",
            json!({"queue": "q", "id": null, "reason": "x"}),
            "id",
        ),
        (
            "retry-messages",
            json!({"consumer": "c", "reason": "x"}),
            "seq",
        ),
        ("redrive", json!({"subscription": "s"}), "subject"),
        (
            "skip",
            json!({"subscription": "s", "reason": "x", "confirm": "skip"}),
            "seq",
        ),
        ("release", json!({"scope": "s", "reason": "x"}), "key"),
    ] {
        let (status, code, title) = refused(&serving, act, &body).await;
        assert_eq!(
            (status, code.as_str()),
            (422, "field_needed"),
            "{act} {body}"
        );
        assert!(title.contains(field), "{act}: {title}");
    }
    for (act, body, wrong, expected) in [
        (
            "retry-jobs",
            json!({"queue": "q", "job": 1, "reason": "x"}),
            "job",
            "tenant, id, queue, reason",
        ),
        (
            "retry-messages",
            json!({"consumer": "c", "sequence": 1, "reason": "x"}),
            "sequence",
            "consumer, seq, reason",
        ),
        (
            "redrive",
            json!({"subscription": "s", "subjekt": "u1"}),
            "subjekt",
            "subject",
        ),
        ("purge", json!({"before": "now"}), "before", "none"),
        (
            "pause-queue",
            json!({"queue": "q", "tenant": "b"}),
            "tenant",
            "queue",
        ),
    ] {
        let (status, code, title) = refused(&serving, act, &body).await;
        assert_eq!(
            (status, code.as_str()),
            (400, "unknown_field"),
            "{act} {body}"
        );
        assert!(
            title.contains(&format!("{wrong:?}")) && title.contains(expected),
            "{title}"
        );
    }
    for act in ["redrive-all", "retry-all-messages", "retry-all-jobs"] {
        let body = json!({"subscription": "s", "consumer": "c", "queue": "q", "reason": "x"});
        let own = match act {
            "redrive-all" => "subscription",
            "retry-all-messages" => "consumer",
            _ => "queue",
        };
        let one = json!({own: body[own], "reason": "x"});
        let (status, code, _) = refused(&serving, act, &one).await;
        assert_eq!((status, code.as_str()), (422, "not_confirmed"), "{act}");
        let one = json!({own: body[own], "confirm": act.split('-').next()});
        assert_eq!(
            refused(&serving, act, &one).await.0,
            422,
            "{act}: no reason"
        );
    }
    assert_eq!(count(&fixture, "pgonce.operator_act").await, acts);
    assert_eq!(
        count(&fixture, "pgonce.parked where state = 'dead'").await,
        3
    );

    // A button says how many it is about, where that is known.
    let page = serving.text("/inbox?consumer=c", OPERATOR).await;
    assert!(
        page.contains("Retry all 1000+ poison messages") && page.contains("1,000+"),
        "{page}"
    );
    let page = serving.text("/outbox?subscription=s", OPERATOR).await;
    assert!(page.contains("Redrive all 3 dead letters"), "{page}");

    // One subject is that of one tenant.
    let done = async |act: &str, body: Value| -> Value {
        let answer = serving.act(act, OPERATOR, &body).await;
        answer.json::<Value>().await.unwrap()["result"].take()
    };
    let one = json!({"subscription": "s", "subject": "u2"});
    assert_eq!(done("redrive", one).await, 1);
    let all = json!({"subscription": "s", "reason": "x", "confirm": "redrive"});
    assert_eq!(done("redrive-all", all).await, 2);
    let one = json!({"consumer": "c", "seq": 7, "reason": "x"});
    assert_eq!(done("retry-messages", one).await, 1);
    let all = json!({"consumer": "c", "reason": "x", "confirm": "retry"});
    assert_eq!(done("retry-all-messages", all).await, 1299);
    let one = json!({"queue": "q", "tenant": "b", "id": 7, "reason": "x"});
    assert_eq!(done("retry-jobs", one).await, 1);
    let all = json!({"queue": "q", "reason": "x", "confirm": "retry"});
    assert_eq!(done("retry-all-jobs", all).await, 11);

    // The description says the same.
    let answer = serving.get("/api/v1/openapi.json", OPERATOR).await;
    let document: Value = answer.json().await.unwrap();
    let of = |act: &str| {
        let post = &document["paths"][format!("/act/{act}")]["post"];
        let schema = &post["requestBody"]["content"]["application/json"]["schema"];
        (
            schema["required"].clone(),
            schema["additionalProperties"].clone(),
        )
    };
    assert_eq!(
        of("retry-jobs"),
        (json!(["queue", "id", "reason"]), json!(false))
    );
    assert_eq!(
        of("retry-all-messages"),
        (json!(["consumer", "reason", "confirm"]), json!(false))
    );
}

#[tokio::test]
async fn an_act_by_force_is_about_what_its_page_showed() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    let page = "/intent?scope=s&key=stuck";
    let seen = async || {
        let page = serving.text(page, ADMIN).await;
        let (_, after) = page.split_once("name=\"before\" value=\"").unwrap();
        after.split('"').next().unwrap().replace("&quot;", "\"")
    };
    let (cookie, csrf) = sign_in(&serving, ADMIN).await;
    let form = |before: &str| {
        let before = url_encoded(before);
        format!("csrf={csrf}&scope=s&key=stuck&reason=r&force=on&confirm=evict&before={before}")
    };
    let stopped = seen().await;
    // The holder succeeds after all, while somebody types a reason.
    fixture
        .sql("select pgonce.succeed('s', 'stuck', '\\x01', fence, '7') from pgonce.intent where key = 'stuck'")
        .await;
    let answer = serving.form("/act/evict", &cookie, &form(&stopped)).await;
    assert_eq!(answer.status(), StatusCode::CONFLICT);
    let refused = answer.text().await.unwrap();
    assert!(
        refused.contains("it is succeeded now") && refused.contains("Look at it again"),
        "{refused}"
    );
    assert_eq!(
        count(&fixture, "pgonce.intent where key = 'stuck'").await,
        1
    );
    // Who sees that it happened may do it.
    let answer = serving
        .form("/act/evict", &cookie, &form(&seen().await))
        .await;
    assert_eq!(answer.status(), StatusCode::SEE_OTHER);
    assert_eq!(
        count(&fixture, "pgonce.intent where key = 'stuck'").await,
        0
    );
}

#[tokio::test]
async fn a_decision_by_force_about_a_call_is_about_what_its_page_showed() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    let path = format!("/call?effect_key={CALL}");
    let seen = async || {
        let page = serving.text(&path, ADMIN).await;
        let (_, after) = page.split_once("name=\"before\" value=\"").unwrap();
        after.split('"').next().unwrap().replace("&quot;", "\"")
    };
    let (cookie, csrf) = sign_in(&serving, ADMIN).await;
    let form = |before: &str| {
        let before = url_encoded(before);
        format!(
            "csrf={csrf}&effect_key={CALL}&outcome=resend&reason=r&force=on&confirm=settle&before={before}"
        )
    };
    let unknown = seen().await;
    // The provider confirms it after all, while somebody types a reason.
    fixture
        .sql("select pgonce.external_observe(provider, 'confirmed', effect_key) from pgonce.external_call")
        .await;
    let resend = async |before: &str| {
        let answer = serving
            .form("/act/settle-call", &cookie, &form(before))
            .await;
        (answer.status(), answer.text().await.unwrap())
    };
    let (status, refused) = resend(&unknown).await;
    assert_eq!(status, StatusCode::CONFLICT, "{refused}");
    assert!(
        refused.contains("it is confirmed now") && refused.contains("Look at it again"),
        "{refused}"
    );
    let confirmed = "pgonce.external_call where status = 'confirmed'";
    assert_eq!(count(&fixture, confirmed).await, 1);
    // Who sees that it happened may do it.
    let (status, page) = resend(&seen().await).await;
    assert_eq!(status, StatusCode::SEE_OTHER, "{page}");
    assert_eq!(count(&fixture, confirmed).await, 0);
}

#[tokio::test]
async fn a_page_of_a_holder_that_is_alive_stays_good_while_its_lease_is_renewed() {
    let fixture = Fixture::installed().await;
    fixture
        .sql("select pgonce.claim('s', 'k', '\\x01', '1 hour')")
        .await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    let page = serving.text("/intent?scope=s&key=k", ADMIN).await;
    let (_, after) = page.split_once("name=\"before\" value=\"").unwrap();
    let before = after.split('"').next().unwrap().replace("&quot;", "\"");
    fixture
        .sql("select pgonce.heartbeat('s', 'k', fence, '2 hours') from pgonce.intent")
        .await;
    // As the API takes it: an object, or its text.
    let seen: Value = serde_json::from_str(&before).unwrap();
    let fail = |before: Value| json!({"scope": "s", "key": "k", "reason": "r", "code": "c", "force": true, "before": before});
    let (status, code, _) = refused(&serving, "fail", &fail(json!({"status": "succeeded"}))).await;
    assert_eq!((status, code.as_str()), (409, "55000"));
    let answer = serving.act("fail", ADMIN, &fail(seen)).await;
    assert_eq!(answer.status(), StatusCode::OK, "{:?}", answer.text().await);
}
