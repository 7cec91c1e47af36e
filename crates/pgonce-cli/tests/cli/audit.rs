//! Every act of the program and of the console is in one table, with the person who did it.

use serde_json::{Value, json};

use crate::console::{ADMIN, CALL, OPERATOR, fill};
use crate::fixture::{Fixture, Run};
use crate::serve::{DEADLINE, Serving, TOKENS};

/// Runs the program as this user of the operating system.
#[track_caller]
fn by(fixture: &Fixture, user: &str, line: &str) -> Run {
    let words: Vec<&str> = line.split(' ').collect();
    let mut command = fixture.command(&words);
    command.env_remove("SUDO_USER").env("USER", user);
    Run::of(command.output().unwrap())
}

/// Commands, and what each leaves: the act, its part and its key.
const COMMANDS: &[(&str, &str)] = &[
    ("scope define mine --retention 1d", "define scope mine *"),
    ("scope drop mine --yes", "drop scope mine *"),
    ("strict on", "strict on scope * *"),
    ("strict off", "strict off scope * *"),
    (
        "intent release s stuck --reason r --force s",
        "release s stuck",
    ),
    ("intent settle s stuck --reason r", "settle s stuck"),
    ("intent evict s stuck --reason r --force s", "evict s stuck"),
    ("intent fail s third --reason r --code c", "fail s third"),
    ("intent retry s third --reason r", "retry s third"),
    (
        "external settle 0190f5a2-7c3e-7000-8000-000000000001 confirmed --reason r --reference ch_7",
        "external confirmed s stuck",
    ),
    ("outbox redrive s --reason r", "redrive outbox s *"),
    ("outbox skip s 1 --reason r", "skip outbox s 1"),
    ("outbox replay s --from 1", "replay outbox s *"),
    ("outbox evict s --reason r", "evict outbox s *"),
    ("outbox subscriptions create n", "create outbox n *"),
    (
        "outbox subscriptions alter n --max-attempts 3",
        "change outbox n *",
    ),
    ("outbox subscriptions drop n", "drop outbox n *"),
    ("outbox retention --keep 2d", "retention outbox *"),
    ("inbox retry c 1 --reason r", "retry inbox c 1"),
    ("inbox skip c 1 --reason r", "skip inbox c 1"),
    ("queue pause q", "pause queue q *"),
    ("queue resume q", "resume queue q *"),
    ("queue limit q --rate 3", "change queue q *"),
    ("job retry q 1 --reason r", "retry job q 1"),
    ("job cancel 2 --reason r", "cancel job q 2"),
    ("import cancel j", "cancel import j *"),
    ("ledger repair --reason r --yes", "repair ledger cash"),
    ("purge --reason r", "purge intents *"),
];

#[tokio::test]
async fn every_act_of_the_program_leaves_a_row_with_the_user_of_the_operating_system() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    fixture
        .sql(
            "select pgonce.claim('s', 'third', '\\x01', '1 second');
             update pgonce.intent set lease_until = pgonce.now() - interval '1 second' where key = 'third';
             update pgonce.external_call set disputed = null;
             select pgonce.ledger_open('cash', 'EUR', 'debit'); select pgonce.ledger_open('ada', 'EUR', 'credit');
             select pgonce.ledger_post('bank', '1', '[{\"account\": \"cash\", \"debit\": 1}, {\"account\": \"ada\", \"credit\": 1}]');
             update pgonce.ledger_account set balance = 7 where account = 'cash'",
        )
        .await;
    for (line, row) in COMMANDS {
        let yes = [
            "intent",
            "external",
            "outbox skip",
            "outbox evict",
            "outbox subscriptions drop",
            "inbox skip",
        ];
        let asks = yes.iter().any(|start| line.starts_with(start));
        let line = format!("{line}{}", if asks { " --yes" } else { "" });
        let run = by(&fixture, "ada", &line);
        assert_eq!(run.code, 0, "{line}: {run:?}");
        let acts = by(&fixture, "bob", "audit --limit 1 --format json");
        let acts: Value = serde_json::from_str(&acts.out).unwrap();
        let act = &acts[0];
        let text = |name: &str| act[name].as_str().unwrap().to_owned();
        assert_eq!(
            format!("{} {} {}", text("act"), text("part"), text("key")),
            *row,
            "{line}"
        );
        assert_eq!(text("person"), "ada", "{line}");
    }
    // Found by everything that it says.
    for (filter, acts) in [
        ("--who ada", COMMANDS.len()),
        ("--who bob", 0),
        ("--act redrive", 1),
        ("--part ledger --key cash --since 1h", 1),
        ("--who ada --tenant acme", 0),
    ] {
        let found = by(&fixture, "bob", &format!("audit {filter} --format json"));
        let found: Value = serde_json::from_str(&found.out).unwrap();
        assert_eq!(found.as_array().unwrap().len(), acts, "{filter}: {found}");
    }
    let shown = fixture.json(&["inbox", "show", "c", "1"]);
    assert_eq!(shown["acts"][1]["who"], "ada (postgres)", "{shown}");
}

/// Acts of the console, who may do them, their fields, and what each leaves.
fn acts() -> Vec<(&'static str, &'static str, Value, &'static str)> {
    vec![
        (
            "release",
            ADMIN,
            json!({"scope": "s", "key": "stuck", "reason": "r", "force": true}),
            "release s stuck",
        ),
        (
            "settle",
            OPERATOR,
            json!({"scope": "s", "key": "stuck", "reason": "r"}),
            "settle s stuck",
        ),
        (
            "evict",
            ADMIN,
            json!({"scope": "s", "key": "stuck", "reason": "r", "force": true, "confirm": "evict"}),
            "evict s stuck",
        ),
        (
            "fail",
            OPERATOR,
            json!({"scope": "s", "key": "third", "reason": "r", "code": "c"}),
            "fail s third",
        ),
        (
            "retry",
            OPERATOR,
            json!({"scope": "s", "key": "third", "reason": "r"}),
            "retry s third",
        ),
        (
            "redrive",
            OPERATOR,
            json!({"subscription": "s", "subject": "u2"}),
            "redrive outbox s u2",
        ),
        (
            "redrive-all",
            OPERATOR,
            json!({"subscription": "s", "reason": "r", "confirm": "redrive"}),
            "redrive outbox s *",
        ),
        (
            "skip",
            OPERATOR,
            json!({"subscription": "s", "seq": 1, "reason": "r", "confirm": "skip"}),
            "skip outbox s 1",
        ),
        (
            "retry-messages",
            OPERATOR,
            json!({"consumer": "c", "seq": 1, "reason": "r"}),
            "retry inbox c 1",
        ),
        (
            "retry-all-messages",
            OPERATOR,
            json!({"consumer": "c", "reason": "r", "confirm": "retry"}),
            "retry inbox c 2",
        ),
        (
            "skip-message",
            OPERATOR,
            json!({"consumer": "c", "seq": 1, "reason": "r", "confirm": "skip"}),
            "skip inbox c 1",
        ),
        (
            "retry-jobs",
            OPERATOR,
            json!({"queue": "q", "id": 1, "reason": "r"}),
            "retry job q 1",
        ),
        (
            "retry-all-jobs",
            OPERATOR,
            json!({"queue": "q", "reason": "r", "confirm": "retry"}),
            "retry job q 2",
        ),
        (
            "cancel-job",
            OPERATOR,
            json!({"queue": "q", "id": 2, "reason": "r", "confirm": "cancel"}),
            "cancel job q 2",
        ),
        (
            "pause-queue",
            OPERATOR,
            json!({"queue": "q"}),
            "pause queue q *",
        ),
        (
            "resume-queue",
            OPERATOR,
            json!({"queue": "q"}),
            "resume queue q *",
        ),
        (
            "settle-call",
            OPERATOR,
            json!({"effect_key": CALL, "outcome": "confirmed", "reason": "r", "confirm": "settle"}),
            "external confirmed s stuck",
        ),
        (
            "cancel-import",
            OPERATOR,
            json!({"job": "j", "number": 1}),
            "cancel import j *",
        ),
        (
            "bulk",
            OPERATOR,
            json!({"op": "fail", "scope": "s", "key": "fourth", "code": "c", "reason": "r", "confirm": "1"}),
            "fail s fourth",
        ),
        ("purge", ADMIN, json!({}), "purge intents *"),
    ]
}

#[tokio::test]
async fn every_act_of_the_console_leaves_a_row_with_who_signed_in() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    fixture
        .sql(
            "select pgonce.claim('s', 'third', '\\x01', '1 second'); select pgonce.claim('s', 'fourth', '\\x01', '1 second');
             update pgonce.intent set lease_until = pgonce.now() - interval '1 second' where key in ('third', 'fourth');
             update pgonce.external_call set disputed = null;
             insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, attempts, parked_at, created_at, size, message_id, topic, type, headers)
             values ('', 's', 'u2', 2, 1, 'dead', 9, now(), now(), 2, gen_random_uuid(), 't', 'y', '{}');
             insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, received_at, holds_key, headers, payload)
             values (2, '', 'c', 'x', '2', '\\x01', 1, 'failed_final', now(), true, '{}', '\\x01')",
        )
        .await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    let acts = acts();
    // All but the one that stops what another has begun: it does nothing by itself.
    let source = include_str!("../../../pgonce-console/src/acts.rs");
    assert_eq!(source.matches("    Act {\n").count(), acts.len() + 1);
    let last = "select concat_ws(' ', act, scope, key), coalesce(person, '') from pgonce.operator_act order by number desc limit 1";
    for (act, token, fields, row) in acts {
        let done = serving.act(act, token, &fields).await;
        assert_eq!(done.status(), 200, "{act}: {}", done.text().await.unwrap());
        // An operation goes on after its answer.
        let there = async || {
            let found = fixture.client.query_one(last, &[]).await.unwrap();
            found.get::<_, String>(0) == row
        };
        pgonce_testkit::wait_until(row, DEADLINE, there)
            .await
            .unwrap();
        let found = fixture.client.query_one(last, &[]).await.unwrap();
        let person = if token == ADMIN { "ada" } else { "otto" };
        assert_eq!(found.get::<_, String>(1), person, "{act}");
    }
    let page = serving.text("/audit", OPERATOR).await;
    for shown in [
        "otto (postgres)",
        "skip",
        "inbox c 1",
        "queue q *",
        "outbox s 1",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
}
