//! `pgonce consume` as its users run it: handlers that are slow, fail or are away. What is killed is in `consume_killed.rs`.

use std::sync::Arc;
use std::time::Duration;

use pgonce_testkit::wait_until;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpSocket;

use crate::consume_service::Service;
use crate::fixture::{Fixture, program};
use crate::relay::{Running, get};

/// Long enough for a loaded machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// Nothing keeps an effect from being there twice.
pub(crate) const TABLES: &str = "
create table received (at bigint generated always as identity, n bigint not null, subject text not null);
create function apply_event(p_message jsonb) returns void language plpgsql as $$
begin
    if (p_message -> 'payload' ->> 'n')::bigint = -1 then
        raise exception 'never' using errcode = 'P4030';
    elsif (p_message -> 'payload' ->> 'n')::bigint = -2 then
        raise exception 'not now';
    end if;
    insert into received (n, subject) values ((p_message -> 'payload' ->> 'n')::bigint, p_message ->> 'key');
end $$;
create function apply_events(p_messages jsonb) returns void language sql as
    'select apply_event(m) from jsonb_array_elements(p_messages) m';
-- The same, but slow at one call and failing at another; a sequence keeps its number when they are rolled back.
create sequence call;
create function apply_harshly(p_messages jsonb) returns void language plpgsql as $$
declare
    v_call bigint := nextval('call');
begin
    if v_call % 13 = 0 then
        perform pg_sleep(0.02);
    end if;
    perform apply_events(case jsonb_typeof(p_messages) when 'array' then p_messages else jsonb_build_array(p_messages) end);
    if v_call % 11 = 0 then
        raise exception 'not now';
    end if;
end $$;
select pgonce.define_inbox('c', p_backoff => '20 ms', p_max_backoff => '100 ms', p_max_attempts => 3);
select pgonce.create_subscription('c');
";

const SUBJECTS: i64 = 10;

pub(crate) async fn fixture() -> Fixture {
    let fixture = Fixture::installed().await;
    fixture.sql(TABLES).await;
    fixture
}

/// Events with these numbers; each of a subject has the numbers of one remainder.
pub(crate) async fn publish(fixture: &Fixture, numbers: std::ops::Range<i64>) {
    for n in numbers {
        let subject = format!("s{}", n.rem_euclid(SUBJECTS));
        let sql = format!("select pgonce.publish('t', 'counted', '{subject}', '{{\"n\": {n}}}')");
        fixture.sql(&sql).await;
    }
}

pub(crate) async fn number(fixture: &Fixture, sql: &str) -> i64 {
    fixture.client.query_one(sql, &[]).await.unwrap().get(0)
}

pub(crate) async fn wait_for(fixture: &Fixture, what: &str, sql: &str, running: &[&Running]) {
    let there = async || number(fixture, sql).await > 0;
    wait_until(what, DEADLINE, there)
        .await
        .unwrap_or_else(|error| {
            let logs: Vec<_> = running.iter().map(|one| one.log()).collect();
            panic!("{error}: {}", logs.join("\n---\n"))
        });
}

pub(crate) fn consume(fixture: &Fixture, args: &[&str]) -> Running {
    let all = ["--consumer", "c", "--log-format", "json"];
    Running::of(fixture, "consume", &[&all, args].concat())
}

/// Each number once, and each subject's in order where that is kept.
pub(crate) async fn assert_exactly_once(fixture: &Fixture, expected: i64, ordered: bool) {
    let twice = "select count(*) from (select n from received group by n having count(*) > 1) x";
    assert_eq!(number(fixture, twice).await, 0, "took effect twice");
    assert_eq!(
        number(fixture, "select count(*) from received").await,
        expected
    );
    if !ordered {
        return;
    }
    let turned = "select count(*) from (select n, lag(n) over (partition by subject order by at) as before \
        from received) x where before > n";
    assert_eq!(
        number(fixture, turned).await,
        0,
        "a subject's order was turned round"
    );
}

#[tokio::test]
async fn a_function_that_fails_holds_its_key_and_no_other() {
    let fixture = fixture().await;
    publish(&fixture, 0..5).await;
    for (n, subject) in [(-1, "refused"), (-2, "failing")] {
        let sql = format!("select pgonce.publish('t', 'counted', '{subject}', '{{\"n\": {n}}}')");
        fixture.sql(&sql).await;
    }
    let sql = "select pgonce.publish('t', 'counted', 'failing', '{\"n\": 77}')";
    fixture.sql(sql).await;
    publish(&fixture, 5..30).await;
    let args = [
        "--source",
        "outbox:c",
        "--sql",
        "apply_event",
        "--listen",
        "127.0.0.1:0",
    ];
    let consumer = consume(&fixture, &args);
    let flow = "select (count(*) = 30)::int::bigint from received";
    wait_for(&fixture, "the others to flow", flow, &[&consumer]).await;
    let poison = "select (count(*) = 2)::int::bigint from pgonce.inbox_poison";
    wait_for(&fixture, "both to be given up", poison, &[&consumer]).await;
    let tries = "select min(attempts)::bigint * 10 + max(attempts) from pgonce.inbox_poison";
    assert_eq!(
        number(&fixture, tries).await,
        3,
        "one refused at once, one tried three times"
    );
    assert_exactly_once(&fixture, 30, true).await;
    let admin = consumer.admin().await;
    let (status, ready) = get(&admin, "/readyz").await;
    assert!(status == 200 && ready.contains("\"applied\":30"), "{ready}");
    let (_, metrics) = get(&admin, "/metrics").await;
    let counted = metrics
        .lines()
        .any(|line| line.starts_with("pgonce_consumer_applied_total") && line.ends_with(" 30"));
    assert!(counted, "{metrics}");
}

/// The next one would have to wait for the end of its lease.
#[tokio::test]
async fn a_consumer_that_was_asked_to_end_keeps_no_lane() {
    let fixture = fixture().await;
    publish(&fixture, 0..10).await;
    let args = ["--source", "outbox:c", "--sql", "apply_event"];
    let mut consumer = consume(&fixture, &args);
    let flow = "select (count(*) = 10)::int::bigint from received";
    wait_for(&fixture, "all to be applied", flow, &[&consumer]).await;
    let kept = "select count(*) from pgonce.outbox_cursor where owner is not null";
    assert_ne!(number(&fixture, kept).await, 0);
    assert_eq!(consumer.stop().await, 0);
    assert_eq!(number(&fixture, kept).await, 0);
}

#[tokio::test]
async fn a_service_that_fails_or_hangs_for_some_gets_the_others() {
    let fixture = fixture().await;
    let (service, url) = Service {
        always: [3].into(),
        hangs: Some(4),
        ..Service::default()
    }
    .start()
    .await;
    publish(&fixture, 0..50).await;
    let args = [
        "--source",
        "outbox:c",
        "--to",
        &url,
        "--handler-timeout",
        "4s",
    ];
    let consumer = consume(&fixture, &args);
    // Ten subjects with five each: two of them wait behind 3 and 4.
    service.wait_for(40, &[&consumer]).await;
    let poison = "select (count(*) = 2)::int::bigint from pgonce.inbox_poison where attempts = 3";
    wait_for(&fixture, "both to be given up", poison, &[&consumer]).await;
    let waiting =
        "select (count(*) = 8)::int::bigint from pgonce.inbox_message where status = 'received'";
    wait_for(&fixture, "8 to wait behind the two", waiting, &[&consumer]).await;
    let codes = "select count(*) from pgonce.inbox_poison where failure_code in ('http_500', 'handler_timeout')";
    assert_eq!(number(&fixture, codes).await, 2);
    let skip = "select pgonce.skip_message('c', seq, 'known') from pgonce.inbox_poison";
    fixture.sql(skip).await;
    service.wait_for(48, &[&consumer]).await;
    service.assert_stable(&[3, 4]);
}

#[tokio::test]
async fn a_service_that_is_away_costs_no_message_an_attempt() {
    let fixture = fixture().await;
    // A place that nobody listens at, until somebody does.
    let place = TcpSocket::new_v4().unwrap();
    place.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    publish(&fixture, 0..20).await;
    let url = format!("http://{}/events", place.local_addr().unwrap());
    let consumer = consume(&fixture, &["--source", "outbox:c", "--to", &url]);
    let tried = async || {
        consumer
            .log()
            .matches("cannot be applied, trying again")
            .count()
            > 5
    };
    wait_until("some tries", DEADLINE, tried)
        .await
        .unwrap_or_else(|error| panic!("{error}: {}", consumer.log()));
    let service = Arc::new(Service::default());
    service.clone().serve(place.listen(1024).unwrap());
    service.wait_for(20, &[&consumer]).await;
    let failed = "select count(*) from pgonce.inbox_message where attempts > 1";
    assert_eq!(number(&fixture, failed).await, 0);
    service.assert_stable(&[]);
}

/// A host that drops what it gets: the queue of a listener that accepts nothing is full.
#[tokio::test]
async fn a_service_that_answers_nothing_at_all_costs_no_message_an_attempt() {
    let fixture = fixture().await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let place = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    let silent = Duration::from_millis(500);
    while let Ok(Ok(stream)) =
        tokio::time::timeout(silent, tokio::net::TcpStream::connect(place)).await
    {
        queue.push(stream);
    }
    publish(&fixture, 0..5).await;
    let url = format!("http://{place}/events");
    let args = [
        "--source",
        "outbox:c",
        "--to",
        &url,
        "--handler-timeout",
        "2s",
    ];
    let consumer = consume(&fixture, &args);
    let tried = async || {
        consumer
            .log()
            .matches("cannot be applied, trying again")
            .count()
            > 2
    };
    wait_until("some tries", DEADLINE, tried)
        .await
        .unwrap_or_else(|error| panic!("{error}: {}", consumer.log()));
    drop(queue);
    let service = Arc::new(Service::default());
    service.clone().serve(listener);
    service.wait_for(5, &[&consumer]).await;
    let failed = "select count(*) from pgonce.inbox_message where attempts > 1";
    assert_eq!(number(&fixture, failed).await, 0);
}

#[tokio::test]
async fn what_cannot_be_consumed_is_said_before_anything_starts() {
    let fixture = fixture().await;
    for (args, code, expected) in [
        (
            &["--source", "outbox:c", "--sql", "nowhere.f"][..],
            2,
            "there is no function",
        ),
        (
            &["--source", "outbox:c", "--sql", "f(); drop table x"],
            2,
            "no name of a function",
        ),
        (
            &["--source", "pigeon:c", "--sql", "apply_event"],
            2,
            "pigeon",
        ),
        (&["--source", "outbox:c"], 2, "--to http"),
        (
            &["--source", "outbox:nobody", "--sql", "apply_event"],
            7,
            "nobody",
        ),
        (
            &["--source", "outbox:c", "--to", "ftp://x"],
            2,
            "neither http://",
        ),
        (
            &["--source", "nats://127.0.0.1:1", "--sql", "apply_event"],
            2,
            "stream",
        ),
    ] {
        let run = fixture.run(&[&["consume", "--consumer", "c"], args].concat());
        assert!(
            run.code == code && run.err.contains(expected),
            "{args:?}: {run:?}"
        );
    }
    let example = program(&["consume", "--print-example"]).output().unwrap();
    let file = std::env::temp_dir().join(format!("consume-{}.toml", std::process::id()));
    std::fs::write(&file, example.stdout).unwrap();
    let said = fixture.ok(&["consume", "--check", file.to_str().unwrap()]);
    assert!(said.contains("billing, balances"), "{said}");
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn the_python_example_makes_each_invoice_once() {
    let fixture = Fixture::installed().await;
    let example =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/consume-python");
    let mut service = tokio::process::Command::new("python3")
        .arg(example.join("billing.py"))
        .arg("0")
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("python3 is needed here: run `make setup`, or install it by hand");
    let mut lines = BufReader::new(service.stdout.take().unwrap()).lines();
    let line = lines
        .next_line()
        .await
        .unwrap()
        .expect("the service starts");
    let url = line.replace("billing on ", "");
    let text = std::fs::read_to_string(example.join("consume.toml")).unwrap();
    let changed = text.replace("http://127.0.0.1:9000", &url);
    assert_ne!(text, changed, "the example has changed");
    let file = std::env::temp_dir().join(format!("example-{}.toml", std::process::id()));
    std::fs::write(&file, changed).unwrap();
    fixture.ok(&["outbox", "subscriptions", "create", "billing"]);
    for (order, event) in [
        ("order-7", r#"{"amount": 5}"#),
        ("order-8", "{}"),
        ("order-9", r#"{"amount": 6}"#),
    ] {
        let sql = format!("select pgonce.publish('orders', 'order.paid', '{order}', '{event}')");
        fixture.sql(&sql).await;
    }
    let consumer = Running::of(&fixture, "consume", &[file.to_str().unwrap()]);
    let over = "select (count(*) filter (where status = 'processed') = 2 and count(*) filter (where status = 'failed_final') = 1)::int::bigint \
        from pgonce.inbox_message";
    wait_for(&fixture, "two invoices and a refusal", over, &[&consumer]).await;
    let (_, invoices) = get(url.trim_start_matches("http://"), "/invoices").await;
    let mut invoices: Vec<Value> = serde_json::from_str(&invoices).unwrap();
    invoices.sort_by_key(|invoice| invoice["amount"].as_i64());
    assert_eq!(
        Value::from(invoices),
        serde_json::json!([
            {"order": "order-7", "amount": 5}, {"order": "order-9", "amount": 6},
        ])
    );
    std::fs::remove_file(file).unwrap();
}
