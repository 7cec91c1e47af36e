//! Secrets as canaries: in keys, headers, payloads, answers, failures and addresses. What programs print, log, count and show
//! is searched for them.

use std::time::Duration;

use pgonce_testkit::{Postgres, wait_until};
use rustix::process::Signal;
use tokio_postgres::{Client, NoTls};

use crate::console::{PAGES, VIEWER};
use crate::fixture::{Fixture, Run, program};
use crate::relay::{Running, get};
use crate::serve::{Serving, TOKENS};

/// In everything that names something: keys, ids, subjects.
const NAME: &str = "c4n4ry-name";
/// In everything that is carried or answered: answers, payloads, headers.
const CONTENT: &str = "c4n4ry-content";
/// In what work says about its failure.
const FAILURE: &str = "c4n4ry-failure";
/// The password of an address.
const PASSWORD: &str = "c4n4ry-password";
const ALL: [&str; 4] = [NAME, CONTENT, FAILURE, PASSWORD];

/// Something of everything. A message's function fails and quotes what it got.
fn fill() -> String {
    format!(
        "select pgonce.define_scope('s', '7 days', p_stale => 'hold');
         select pgonce._move_clock('-2 hours');
         select pgonce.claim('s', '{NAME} stuck', '\\x01', '1 second', p_correlation => 'request-7');
         select pgonce._reset_clock();
         insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint, answer)
         values (1, now(), now() + interval '1 day', 3, 'succeeded', '', 's', '{NAME} done', '\\x02', '{{\"card\": \"{CONTENT}\"}}');
         insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint, answer, failure_code, failure_message)
         values (1, now(), now() + interval '1 day', 3, 'failed_final', '', 's', '{NAME} failed', '\\x02', '{{\"card\": \"{CONTENT}\"}}', 'no', '{FAILURE}');
         select pgonce.create_subscription('billing'), pgonce.create_subscription('c'), pgonce.create_subscription('failing');
         insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, attempts, parked_at, created_at, size, message_id, topic, type, headers, payload, reason)
         values ('', 'failing', '{NAME} parked', 1, 1, 'dead', 9, now(), now(), 2, gen_random_uuid(), 't', 'x', '{{\"trace\": \"{CONTENT}\"}}', '{{\"card\": \"{CONTENT}\"}}', '{FAILURE}');
         select pgonce.publish('t', 'x', '{NAME} ' || n, '{{\"card\": \"{CONTENT}\"}}', p_headers => '{{\"trace\": \"{CONTENT}\"}}')
           from generate_series(1, 3) n;
         select pgonce.store_message('c', 'shop', '{NAME} refused', convert_to('{{\"card\": \"{CONTENT}\"}}', 'UTF8'), p_key => '{NAME}',
             p_headers => '{{\"trace\": \"{CONTENT}\"}}', p_outcome => 'poison', p_code => 'no', p_reason => '{FAILURE}');
         select pgonce.enqueue('q', '{{\"card\": \"{CONTENT}\"}}', p_key => '{NAME}');
         select pgonce.define_inbox('c', p_backoff => '20 ms', p_max_backoff => '50 ms', p_max_attempts => 2);
         create function refuse(p_message jsonb) returns void language plpgsql as
         $$ begin raise exception '{FAILURE} %', p_message using detail = p_message::text; end $$;"
    )
}

/// What reads, and what of the canaries it is for: names for lists, failures where they are looked at.
const LOOKS: &[(&[&str], &[&str])] = &[
    (&["doctor"], &[]),
    (&["suppression"], &[]),
    (&["scope", "list"], &[]),
    (&["scope", "show", "s"], &[]),
    (&["outbox", "status"], &[]),
    (&["outbox", "subscriptions", "list"], &[]),
    (&["queue", "list"], &[]),
    (&["job", "list"], &[NAME]),
    (&["intent", "list", "s"], &[NAME]),
    (&["intent", "stuck"], &[NAME, FAILURE]),
    (&["intent", "retried"], &[NAME, FAILURE]),
    (&["inbox", "list", "c"], &[NAME, FAILURE]),
    (&["outbox", "list", "failing"], &[NAME, FAILURE]),
    (&["find", "c4n4ry-name"], &[NAME, FAILURE]),
    (&["find", "c4n4ry-name 1"], &[NAME]),
    (&["find", "c4n4ry-name done"], &[NAME]),
    (&["migrate", "status"], &[]),
];

fn assert_none(what: &str, text: &str, but: &[&str]) {
    for canary in ALL.iter().filter(|canary| !but.contains(canary)) {
        assert!(!text.contains(canary), "{canary} is in {what}:\n{text}");
    }
}

/// A viewer, who may read no answer, payload or header, and an operator, who sees them where he asks for one thing whole.
#[tokio::test]
async fn lists_reports_and_pages_hold_no_secrets() {
    let fixture = Fixture::installed().await;
    fixture.sql(&fill()).await;
    let role = format!("viewer_{}", uuid::Uuid::new_v4().simple());
    fixture.sql(&format!("create role {role} login")).await;
    fixture.ok(&["migrate", "up", "--grant", &format!("viewer={role}")]);
    let url = fixture.database.url();
    let (_, rest) = url.split_once('@').unwrap();
    let viewer = format!("postgres://{role}:{PASSWORD}@{rest}");
    for format in ["table", "json"] {
        for (args, shown) in LOOKS {
            let args = [args, &["--format", format][..]].concat();
            let run = fixture.run(&args);
            let text = format!("{}{}", run.out, run.err);
            assert_none(&format!("{args:?}"), &text, shown);
            // It looked: what it is for is there.
            assert!(
                shown.is_empty() || text.contains(shown[0]),
                "{args:?}: {text}"
            );
            let seen = program(&args).env("DATABASE_URL", &viewer).output();
            let seen = Run::of(seen.unwrap());
            let text = format!("{}{}", seen.out, seen.err);
            assert_none(&format!("a viewer's {args:?}"), &text, &[NAME, FAILURE]);
        }
        for key in ["c4n4ry-name done", "c4n4ry-name failed"] {
            let args = ["intent", "show", "s", key, "--format", format];
            assert!(
                fixture.ok(&args).contains(CONTENT),
                "an operator asks for it"
            );
            let seen = program(&args).env("DATABASE_URL", &viewer).output();
            let seen = Run::of(seen.unwrap());
            assert!(!seen.out.contains(CONTENT), "{seen:?}");
        }
    }
    let serving = Serving::of(&fixture, &[], TOKENS);
    for page in PAGES.iter().copied().chain([
        "/find?q=c4n4ry-name",
        "/intent?scope=s&key=c4n4ry-name%20done",
        "/intent?scope=s&key=c4n4ry-name%20failed",
        "/outbox?subscription=failing",
        "/api/v1/intents",
        "/api/v1/inbox?consumer=c",
        "/api/v1/outbox?subscription=failing",
    ]) {
        let text = serving.text(page, VIEWER).await;
        assert_none(page, &text, &[NAME, FAILURE]);
    }
    assert_none("/metrics", &serving.text("/metrics", VIEWER).await, &[]);
    assert_none("the log of serve", &serving.log.lock().unwrap(), &[]);
    drop(serving);
    fixture
        .sql(&format!("drop owned by {role}; drop role {role}"))
        .await;
}

/// Everything that an address with a password can be given to, where nobody listens or the server refuses it.
#[tokio::test]
async fn no_address_is_shown_with_its_password() {
    let fixture = Fixture::installed().await;
    fixture.sql(&fill()).await;
    let nobody = format!("postgres://u:{PASSWORD}@127.0.0.1:1/x");
    for args in [
        &["doctor"][..],
        &["migrate", "up"],
        &["intent", "list", "s"],
        &["find", "x"],
        &[
            "relay",
            "--subscription",
            "billing",
            "--sink",
            "stdout:",
            "--once",
        ],
    ] {
        for format in ["table", "json"] {
            let args = [args, &["--format", format]].concat();
            let run = Run::of(
                program(&args)
                    .env("DATABASE_URL", &nobody)
                    .output()
                    .unwrap(),
            );
            assert_ne!(run.code, 0, "{args:?}");
            assert_none(&format!("{args:?}"), &format!("{run:?}"), &[]);
        }
    }
    for address in [
        format!("nats://u:{PASSWORD}@127.0.0.1:1?stream=S"),
        format!("amqp://u:{PASSWORD}@127.0.0.1:1/x?exchange=e"),
        format!("redis://u:{PASSWORD}@127.0.0.1:1?stream=s"),
        format!("kafka+tls://u:{PASSWORD}@127.0.0.1:1?topic=t"),
        format!("kafka+tls://u:{PASSWORD}@127.0.0.1:1?nonsense=t"),
        format!("nosuch://u:{PASSWORD}@127.0.0.1:1"),
    ] {
        let args = [
            "--subscription",
            "billing",
            "--sink",
            &address,
            "--log-level",
        ];
        let relay = Running::start(&fixture, &[&args[..], &["debug"]].concat());
        let tried = async || {
            let log = relay.log().to_lowercase();
            log.contains("warn") || log.contains("error")
        };
        wait_until("a line", Duration::from_secs(60), tried)
            .await
            .unwrap();
        assert_none(&address, &relay.log(), &[]);
    }
}

/// A server that logs every statement with a client that fails and daemons that say all they can.
#[tokio::test]
async fn the_logs_and_metrics_of_daemons_hold_no_secrets() {
    let mut server = Postgres::builder();
    for (name, value) in [
        ("log_statement", "all"),
        ("log_min_duration_statement", "0"),
        ("log_min_error_statement", "debug5"),
        ("log_parameter_max_length", "0"),
        ("log_parameter_max_length_on_error", "0"),
    ] {
        server = server.setting(name, value);
    }
    let server = server.start().await.unwrap();
    let url = server.url();
    let up = program(&["migrate", "up"])
        .env("DATABASE_URL", &url)
        .output();
    assert_eq!(Run::of(up.unwrap()).code, 0);
    let (client, connection): (Client, _) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    // Ours, not the programs'.
    client
        .batch_execute("set log_statement = none; set log_min_duration_statement = -1; set log_min_error_statement = panic")
        .await
        .unwrap();
    client.batch_execute(&fill()).await.unwrap();
    let start = |command: &str, args: &[&str]| {
        let more = ["--listen", "127.0.0.1:0", "--log-level", "debug"];
        let args = [args, &more, &["--log-format", "json"]].concat();
        Running::with_url(&url, command, &args)
    };
    let relay = start("relay", &["--subscription", "billing", "--sink", "stdout:"]);
    let args = ["--consumer", "c", "--source", "outbox:c", "--sql", "refuse"];
    let consumer = start("consume", &args);
    let failed = async || {
        let poison = "select count(*) from pgonce.inbox_poison";
        let row = client.query_one(poison, &[]).await.unwrap();
        row.get::<_, i64>(0) == 4
    };
    wait_until(
        "everything to be given up",
        Duration::from_secs(120),
        failed,
    )
    .await
    .unwrap_or_else(|error| panic!("{error}: {}", consumer.log()));
    // Who reads the log finds the message by what the log names it by.
    let log = consumer.log();
    let line = log
        .lines()
        .find(|line| line.contains("could not be applied"));
    let (_, named) = line.unwrap().split_once("\"id\":\"").unwrap();
    let named = named.split('"').next().unwrap();
    let found = program(&["find", named]).env("DATABASE_URL", &url).output();
    let found = Run::of(found.unwrap());
    assert!(found.out.contains("hashed id"), "{found:?}");
    for (name, mut running) in [("relay", relay), ("consumer", consumer)] {
        let (_, page) = get(&running.admin().await, "/metrics").await;
        assert_none(&format!("the metrics of a {name}"), &page, &[]);
        running.signal(Signal::TERM);
        assert_eq!(running.end().await, 0, "{}", running.log());
        assert_none(&format!("the log of a {name}"), &running.log(), &[]);
    }
    // The text that the function raised is the function's own: it is the server that logs it.
    let log = server.log().unwrap();
    assert!(log.contains("statement: ") || log.contains("execute "));
    let raised = |line: &&str| !line.contains("ERROR:  ") && !line.contains("DETAIL:  ");
    let ours: Vec<_> = log.lines().filter(raised).collect();
    assert_none("the server's log", &ours.join("\n"), &[]);
}
