//! The console over HTTP and in a browser: who may do what, and that nothing shown is markup.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::serve::{Serving, TOKENS};

pub(crate) const VIEWER: &str = "viewer-token-0123456789";
pub(crate) const OPERATOR: &str = "operator-token-0123456789";
pub(crate) const ADMIN: &str = "admin-token-0123456789";

pub(crate) const PAGES: [&str; 16] = [
    "/",
    "/intents",
    "/intents?q=state:stuck",
    "/intent?scope=s&key=stuck",
    "/outbox?subscription=s",
    "/inbox?consumer=c",
    "/queue",
    "/queue?queue=q",
    "/job?id=1",
    "/external?status=open",
    "/imports",
    "/import?job=j&number=1",
    "/operations?op=release&scope=s",
    "/ledger?check=yes",
    "/scopes",
    "/audit",
];

/// The effect key of the call in [`fill`].
pub(crate) const CALL: &str = "0190f5a2-7c3e-7000-8000-000000000001";

/// What would run, or would be seen to be markup, were it not escaped.
const PROBE: &str = "<script>document.title=1</script><img src=x onerror=alert(1)>\"''>";

/// Something on every page, with the probe in every field that people or programs may write.
pub(crate) async fn fill(fixture: &Fixture) {
    let probe = PROBE.replace('\'', "''");
    fixture
        .sql(&format!(
            "select pgonce.define_scope('s', '7 days', p_stale => 'hold', p_note => '{probe}');
             select pgonce._move_clock('-2 hours');
             select pgonce.claim('s', 'stuck', '\\x01', '1 second', '{probe}', p_correlation => '{probe}');
             select pgonce.claim('s', '{probe}', '\\x01', '1 second', '{probe}', '{probe}');
             select pgonce.claim('s', 'second', '\\x01', '1 second');
             select pgonce._reset_clock();
             insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint, answer, ref_type, ref_id)
             values (1, now(), now() + interval '1 day', 1, 'succeeded', '', 's', 'done', '\\x02', '{{\"card\": \"4111 1111\", \"id\": 7}}', '{probe}', '{probe}');
             select pgonce.create_subscription('s');
             select pgonce.publish('t', '{probe}', '{probe}', '{{}}');
             insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, attempts, parked_at, created_at, size, message_id, topic, type, headers, reason)
             values ('{probe}', 's', '{probe}', 1, 1, 'dead', 9, now(), now(), 2, gen_random_uuid(), 't', '{probe}', '{{}}', '{probe}');
             insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, received_at, holds_key, headers, payload, failure_code, failure_message, key, type)
             values (1, '', 'c', '{probe}', '{probe}', '\\x01', 1, 'failed_final', now(), true, '{{}}', '\\x01', '{probe}', '{probe}', '{probe}', '{probe}');
             insert into pgonce.suppressed values ('{probe}', '{probe}', 1, 1, 1, 1);
             select pgonce.define_queue('{probe}', p_max_running => 2, p_rate => 3);
             insert into pgonce.job (id, created_at, priority, tenant, queue, unique_key, key, group_name, payload)
             select n, now(), 0, '', 'q', n || '{probe}', '{probe}', '{probe}', jsonb_build_object('card', '4111 1111', 'note', '{probe}'::text) from generate_series(1, 4) n;
             insert into pgonce.job_end (id, ended_at, status, attempts, tenant, queue, owner, failure_code, failure_message, result)
             select n, now(), 'dead', 3, '', 'q', '{probe}', '{probe}', '{probe}', jsonb_build_object('note', '{probe}'::text) from generate_series(1, 2) n;
             insert into pgonce.job_live (id, due_at, state, priority, tenant, queue, key, owner, failure_code, failure_message)
             values (3, now() + interval '1 minute', 'running', 0, '', 'q', '{probe}', '{probe}', '{probe}', '{probe}'), (4, null, 'ready', 0, '', 'q', '{probe}', null, '{probe}', '{probe}');
             insert into pgonce.job_schedule values ('', '{probe}', '{probe}', '{probe}', '{probe}', null, now(), now());
             insert into pgonce.external_provider (provider, defined_at) values ('{probe}', now());
             insert into pgonce.external_call (effect_key, fence, requested_at, first_sent_at, sent_at, deadline_at, sends, status, decides, tenant, scope, key, step, provider, digest, request, reference, failure_code, failure_message, decided_by, disputed)
             values ('{CALL}', 1, now(), now() - interval '2 days', now() - interval '2 days', now() - interval '1 day', 1, 'unknown', true, '', 's', 'stuck', '{probe}', '{probe}', '\\x01',
                     jsonb_build_object('card', '4111 1111', 'note', '{probe}'::text), '{probe}', '{probe}', '{probe}', '{probe}', '{probe}');
             insert into pgonce.external_event (seen_at, effect_key, outcome, tenant, provider, event_id, reference, failure_code)
             values (now(), '{CALL}', 'confirmed', '', '{probe}', '{probe}', '{probe}', '{probe}');
             insert into pgonce.import (tenant, job, number, source, settings, state, runner, backend, leased_until, started_at)
             values ('', 'j', 1, '{probe}', '{{}}', 'running', gen_random_uuid(), 1, now(), now()), ('{probe}', '{probe}', 1, '{probe}', '{{}}', 'done', gen_random_uuid(), 1, now(), now());
             insert into pgonce.import_row values ('', 'j', 1, 1, 2, 'failed', '{probe}', '{probe}', '{probe}', '{probe}');
             select pgonce.intervene('settle', 's', 'second', '{probe}', p_person => '{probe}')"
        ))
        .await;
}

/// Every act, and the token of the least role that may do it.
pub(crate) const ACTS: [(&str, &str); 21] = [
    ("settle", OPERATOR),
    ("fail", OPERATOR),
    ("release", OPERATOR),
    ("retry", OPERATOR),
    ("evict", ADMIN),
    ("redrive", OPERATOR),
    ("redrive-all", OPERATOR),
    ("skip", OPERATOR),
    ("retry-messages", OPERATOR),
    ("retry-all-messages", OPERATOR),
    ("skip-message", OPERATOR),
    ("retry-jobs", OPERATOR),
    ("retry-all-jobs", OPERATOR),
    ("cancel-job", OPERATOR),
    ("pause-queue", OPERATOR),
    ("resume-queue", OPERATOR),
    ("settle-call", OPERATOR),
    ("cancel-import", OPERATOR),
    ("bulk", OPERATOR),
    ("cancel-bulk", OPERATOR),
    ("purge", ADMIN),
];

/// The command that does the same as each act.
const COMMANDS: [(&str, &str); 20] = [
    ("settle", "intent settle"),
    ("fail", "intent fail"),
    ("release", "intent release"),
    ("retry", "intent retry"),
    ("evict", "intent evict"),
    ("redrive", "outbox redrive"),
    ("redrive-all", "outbox redrive"),
    ("skip", "outbox skip"),
    ("retry-messages", "inbox retry"),
    ("retry-all-messages", "inbox retry"),
    ("skip-message", "inbox skip"),
    ("retry-jobs", "job retry"),
    ("retry-all-jobs", "job retry"),
    ("cancel-job", "job cancel"),
    ("pause-queue", "queue pause"),
    ("resume-queue", "queue resume"),
    ("settle-call", "external settle"),
    ("cancel-import", "import cancel"),
    // By --stuck, --failed and --prefix; to stop it, the command is stopped.
    ("bulk", "intent release"),
    ("purge", "purge"),
];

#[test]
fn every_act_has_a_command() {
    let commands = crate::search_path::commands();
    for (act, _) in ACTS.iter().filter(|(act, _)| *act != "cancel-bulk") {
        let twin = COMMANDS.iter().find(|(name, _)| name == act);
        assert!(
            twin.is_some_and(|(_, command)| commands.iter().any(|known| known == command)),
            "{act}"
        );
    }
}

#[tokio::test]
async fn every_act_is_checked_for_every_role_by_form_and_by_api() {
    let fixture = Fixture::installed().await;
    let serving = Serving::of(&fixture, &[], TOKENS);
    // The list is complete: an act that is not here would be unchecked.
    let source = include_str!("../../../pgonce-console/src/acts.rs");
    assert_eq!(source.matches("    Act {\n").count(), ACTS.len());
    let ranks = ["", VIEWER, OPERATOR, ADMIN];
    let rank = |token: &str| ranks.iter().position(|other| *other == token).unwrap();
    for (act, needed) in ACTS {
        for token in ranks {
            let allowed = rank(token) >= rank(needed);
            let api = serving.act(act, token, &json!({})).await.status();
            let form = match token {
                "" => serving.form(&format!("/act/{act}"), "", "").await.status(),
                token => {
                    let (cookie, csrf) = sign_in(&serving, token).await;
                    let body = format!("csrf={csrf}");
                    serving
                        .form(&format!("/act/{act}"), &cookie, &body)
                        .await
                        .status()
                }
            };
            if token.is_empty() {
                assert_eq!(
                    (api, form),
                    (StatusCode::UNAUTHORIZED, StatusCode::SEE_OTHER),
                    "{act}"
                );
            } else {
                assert_eq!(
                    api != StatusCode::FORBIDDEN,
                    allowed,
                    "{act} by API as {token}: {api}"
                );
                assert_eq!(
                    form != StatusCode::FORBIDDEN,
                    allowed,
                    "{act} by form as {token}: {form}"
                );
            }
        }
    }
    // Force is for admins, whatever the act.
    let forced = json!({"scope": "s", "key": "k", "reason": "r", "force": true});
    assert_eq!(
        serving.act("release", OPERATOR, &forced).await.status(),
        403
    );
    assert_eq!(serving.act("release", ADMIN, &forced).await.status(), 404);
    // Pages need somebody, health needs nobody.
    for page in PAGES {
        assert_eq!(serving.get(page, "").await.status(), 303, "{page}");
        assert_eq!(serving.get(page, VIEWER).await.status(), 200, "{page}");
    }
    assert_eq!(serving.get("/api/v1/intents", "wrong").await.status(), 401);
    assert_eq!(serving.get("/readyz", "").await.status(), 200);
}

/// A session: its cookie, and the word that forms send back.
pub(crate) async fn sign_in(serving: &Serving, token: &str) -> (String, String) {
    let answer = serving.form("/login", "", &format!("token={token}")).await;
    assert_eq!(answer.status(), 303);
    let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let request = serving.http.get(format!("{}/scopes", serving.url));
    let page = request
        .header("cookie", &cookie)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let (_, after) = page.split_once("name=\"csrf\" value=\"").unwrap();
    (cookie, after.split('"').next().unwrap().to_owned())
}

#[tokio::test]
async fn a_form_of_another_page_another_origin_or_another_name_is_refused() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let serving = Serving::of(&fixture, &[], TOKENS);
    let (cookie, csrf) = sign_in(&serving, OPERATOR).await;
    let body = "scope=s&key=stuck&reason=ticket+7";
    assert_eq!(
        serving.form("/act/release", &cookie, body).await.status(),
        403
    );
    assert_eq!(
        serving.form("/login", "", "token=wrong").await.status(),
        403
    );
    let good = format!("{body}&csrf={csrf}&force=");
    let request = serving
        .http
        .post(format!("{}/act/release", serving.url))
        .header("cookie", &cookie);
    let foreign = request
        .header("origin", "https://evil.example")
        .body(good.clone())
        .send()
        .await
        .unwrap();
    assert_eq!(foreign.status(), 403);
    // A form cannot be sent to the API.
    let request = serving
        .http
        .post(format!("{}/api/v1/act/release", serving.url))
        .header("cookie", &cookie);
    assert_eq!(request.body(good).send().await.unwrap().status(), 415);
    // After a sign-in people come back to a page of ours, and to no other.
    for (next, to) in [
        ("%2Fscopes", "/scopes"),
        ("https%3A%2F%2Fevil.example", "/"),
        ("%2F%2Fevil.example", "/"),
        ("%2F%5Cevil.example", "/"),
        ("%2F%09%2Fevil.example", "/"),
    ] {
        let answer = serving
            .form("/login", "", &format!("token={VIEWER}&next={next}"))
            .await;
        assert_eq!(answer.headers()["location"], to);
    }

    let local = Serving::of(&fixture, &[], "");
    for host in ["evil.example", "10.0.0.7"] {
        let answer = local
            .http
            .get(&local.url)
            .header("host", host)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 403, "{host}");
    }
    assert_eq!(local.get("/", "").await.status(), 200);
    let run = fixture.run(&["serve", "--listen", "0.0.0.0:0"]);
    assert!(
        run.code == 2 && run.err.contains("no authentication"),
        "{run:?}"
    );
}

#[tokio::test]
async fn nothing_that_is_shown_is_markup_and_nothing_is_asked_of_others() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let serving = Serving::of(&fixture, &["--instance", PROBE], "");
    let find = format!("/find?q={}", "%3Cscript%3Edocument.title=1%3C/script%3E");
    let key = url_encoded(PROBE);
    let one = format!("/intent?tenant={key}&scope=s&key={key}");
    let done = format!("/scopes?done={key}");
    let call = format!("/call?effect_key={CALL}");
    let of_probe = [
        "queue?queue",
        "job?id",
        "external?provider",
        "call?effect_key",
        "import?job",
    ]
    .map(|field| format!("/{field}={key}"));
    let pages = PAGES
        .iter()
        .copied()
        .chain([
            &*find,
            &*one,
            &*done,
            &*call,
            "/login?next=%22%3E%3Cscript%3E",
        ])
        .chain(of_probe.iter().map(String::as_str));
    for page in pages {
        let answer = serving.get(page, "").await;
        assert_eq!(answer.status(), 200, "{page}");
        let policy = answer.headers()["content-security-policy"]
            .to_str()
            .unwrap()
            .to_owned();
        assert!(
            policy.contains("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        let html = answer.text().await.unwrap();
        assert!(
            !html.contains("<script>") && !html.contains("<img src=x"),
            "{page}: {html}"
        );
        assert_eq!(html.matches("<script").count(), 1, "{page}");
        for attribute in ["src=\"", "href=\"", "action=\""] {
            for address in html.split(attribute).skip(1) {
                assert!(
                    address.starts_with('/') && !address.starts_with("//")
                        || address.starts_with('#'),
                    "{page}: {address:.40}"
                );
            }
        }
    }
    assert!(serving.text(&one, "").await.contains("&lt;script&gt;"));
}

pub(crate) fn url_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test]
async fn an_act_is_done_once_is_audited_with_its_person_and_answers_are_for_those_who_may() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let serving = Serving::of(&fixture, &["--redact", "card,iban"], TOKENS);
    let seen = serving.text("/intent?scope=s&key=done", VIEWER).await;
    assert!(
        seen.contains("It happened once")
            && !seen.contains("4111 1111")
            && seen.contains("viewer does not see it"),
        "{seen}"
    );
    let seen = serving.text("/intent?scope=s&key=done", OPERATOR).await;
    assert!(
        seen.contains("&quot;id&quot;: 7") && !seen.contains("4111 1111"),
        "{seen}"
    );

    // A reason is needed; then it is done, and a second time it does not fit any longer.
    let settle = |reason: &str| json!({"scope": "s", "key": "stuck", "reason": reason, "answer": "{\"id\": 1}"});
    assert_eq!(
        serving.act("settle", OPERATOR, &settle(" ")).await.status(),
        422
    );
    let done = serving.act("settle", OPERATOR, &settle("ticket 7")).await;
    assert_eq!(done.status(), 200, "{:?}", done.text().await);
    assert_eq!(
        serving
            .act("settle", OPERATOR, &settle("ticket 7"))
            .await
            .status(),
        409
    );
    let audit: Value = serving
        .get("/api/v1/audit", VIEWER)
        .await
        .json()
        .await
        .unwrap();
    let entry = &audit["sections"][0]["rows"][0];
    assert_eq!(
        (&entry["act"], &entry["reason"]),
        (&json!("settle"), &json!("ticket 7"))
    );
    assert!(
        entry["who"].as_str().unwrap().starts_with("otto"),
        "{entry}"
    );
    let page = serving.text("/intent?scope=s&key=stuck", VIEWER).await;
    assert!(
        page.contains("It happened once") && page.contains("settle by otto: ticket 7"),
        "{page}"
    );

    // What cannot be undone is confirmed by a word.
    let evict = |word: &str| json!({"scope": "s", "key": "done", "reason": "r", "force": true, "confirm": word});
    assert_eq!(
        serving.act("evict", ADMIN, &evict("yes")).await.status(),
        422
    );
    assert_eq!(
        serving.act("evict", ADMIN, &evict("evict")).await.status(),
        200
    );
    assert_eq!(
        serving
            .act(
                "redrive-all",
                OPERATOR,
                &json!({"subscription": "s", "reason": "r", "confirm": "redrive"})
            )
            .await
            .json::<Value>()
            .await
            .unwrap()["result"],
        1
    );
    let skip = json!({"consumer": "c", "seq": 1, "reason": "a test", "confirm": "skip"});
    assert_eq!(
        serving.act("skip-message", OPERATOR, &skip).await.status(),
        200
    );
    let inbox: Value = serving
        .get("/api/v1/inbox", VIEWER)
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(inbox["sections"][1]["rows"], json!([]));

    // Nothing that is not remembered is said not to have happened.
    let found = serving.text("/find?q=no-such-thing", VIEWER).await;
    assert!(found.contains("does not prove"), "{found}");
}
