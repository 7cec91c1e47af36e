//! Secrets stay out of the server's log, of errors and of debug output, whatever the server logs. Where it logs
//! parameters it logs them as parameters: they are in no statement's text.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::StoreAs;
use pgonce::{Ack, Attempt, Claim, Error, Event, Failure, Intent, Isolation, Message, Once};
use pgonce_testkit::Postgres;
use pgonce_tests::{TestDriver, install};
use serde_json::{Value, json};

use crate::callers::Joins;
use crate::campaign::in_time;

const CANARY: &str = "c4n4ry";
const MINUTE: Duration = Duration::from_secs(60);

/// What is logged as text: the lines that hold parameters are left out where the server was asked for them.
fn leaks(log: &str) -> Vec<&str> {
    log.lines()
        .filter(|line| line.contains(CANARY) && !line.contains("DETAIL:  parameters: "))
        .collect()
}

/// Every path with a secret in everything that a caller gives; answers what was shown of errors and values.
async fn drive<D: Joins>(url: &str, isolation: Isolation) -> String {
    let mut shown = String::new();
    let mut show = |text: String| shown.push_str(&text);
    let once = Once::builder(D::connect(url, 4))
        .isolation(isolation)
        .owner("pod-7")
        .build()
        .unwrap();
    let named = |key: &str, payload: &str| {
        let key = format!("{CANARY} {} {isolation:?} {key}", D::NAME);
        Intent::new("orders.create", key, &format!("{CANARY} {payload}"))
            .unwrap()
            .tenant("acme")
            .unwrap()
            .correlation("request-7")
    };
    let answer = json!({ "card": CANARY });
    let done = named("done", "request");
    for _ in 0..2 {
        let run = once.run(&done, async |mut tx: Attempt<D>| {
            tx.lock(&format!("{CANARY} lock"), MINUTE).await?;
            let event = Event::new("orders", "order.created")
                .subject(format!("{CANARY} {} {isolation:?}", D::NAME))
                .header("trace", CANARY)
                .payload(&answer)?;
            tx.publish(event).await?;
            let row = json!({"customer": CANARY, "reference": format!("{CANARY} {} {isolation:?}", D::NAME), "item": CANARY});
            let row = tx.insert_or_fetch::<Value>("public.one_order_per_reference", &row);
            let _ = row.await?;
            let ack = Ack::value(&answer)?.and_reference("order", 7);
            tx.succeed(ack).await
        });
        let got = run.await.unwrap();
        assert_eq!(got.ack().json(), Some(&answer));
        show(format!("{got:?}"));
    }
    let conflict = once.claim(&named("done", "another")).await.unwrap_err();
    assert!(matches!(conflict, Error::Conflict(_)));
    show(format!("{conflict} {conflict:?}"));
    let held = named("held", "request");
    let Claim::Run(lease) = once.lease(&held, MINUTE).await.unwrap() else {
        panic!("fresh")
    };
    show(format!(
        "{lease:?} {:?} {held:?}",
        once.claim(&held).await.unwrap()
    ));
    let failure = Failure::transient("later", CANARY)
        .with_answer(&answer)
        .unwrap();
    lease.fail(failure).await.unwrap();
    let refused = named("refused", "request");
    for _ in 0..2 {
        let failure = Failure::permanent("no", CANARY)
            .with_answer(&answer)
            .unwrap();
        let run = once.run::<(), _, _>(&refused, async |_| Err(failure.clone().into()));
        assert!(matches!(run.await.unwrap_err(), Error::Refused(_)));
    }
    let Claim::Run(old) = once.lease(&held, Duration::from_millis(1)).await.unwrap() else {
        panic!("retry")
    };
    while !matches!(once.lease(&held, MINUTE).await.unwrap(), Claim::Run(_)) {}
    let fenced = old.succeed(&answer).await.unwrap_err();
    assert!(matches!(fenced, Error::Fenced(_)), "{fenced}");
    show(format!("{fenced} {fenced:?}"));

    let inbox = once.inbox();
    let message = |body: &str| {
        Message::new(
            format!("{CANARY} {} {isolation:?}", D::NAME),
            format!("{CANARY} {body}"),
        )
    };
    let mut batch = inbox.begin().await.unwrap();
    let (first, other) = (message("first"), message("other"));
    let verdicts = batch.dedupe("billing", "shop", &[&first]).await.unwrap();
    show(format!("{verdicts:?} {first:?}"));
    batch.commit().await.unwrap();
    let mut batch = inbox.begin().await.unwrap();
    let reused = batch
        .lend("")
        .unwrap()
        .accept("billing", "shop", &other)
        .await
        .unwrap_err();
    assert_eq!(reused.code(), "P4050");
    show(format!("{reused} {reused:?}"));
    batch.roll_back().await.unwrap();
    let mut batch = inbox.begin().await.unwrap();
    let stored = batch
        .store("billing", "shop", &other, &StoreAs::Received)
        .await
        .unwrap();
    batch.commit().await.unwrap();
    show(format!("{stored:?} {:?}", once.stuck(10).await.unwrap()));
    once.flush().await.unwrap();
    shown
}

/// Keeps what is logged, at every level, by what runs on this thread while the guard lives.
fn traced() -> (Arc<Mutex<Vec<u8>>>, tracing::subscriber::DefaultGuard) {
    struct Kept(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Arc::<Mutex<Vec<u8>>>::default();
    let kept = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_writer(move || Kept(kept.clone()))
        .finish();
    (log, tracing::subscriber::set_default(subscriber))
}

async fn nothing_leaks(settings: &[(&str, &str)]) {
    let mut server = Postgres::builder();
    for (name, value) in settings {
        server = server.setting(*name, *value);
    }
    let server = server.start().await.unwrap();
    install(server.url()).await.unwrap();
    let (traces, _tracing) = traced();
    for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
        let shown = drive::<TokioPostgres>(&server.url(), isolation).await
            + &drive::<Sqlx>(&server.url(), isolation).await;
        assert!(!shown.contains(CANARY), "{shown}");
    }
    // Statements are in it, with sqlx, and no value of any.
    let traces = String::from_utf8(traces.lock().unwrap().clone()).unwrap();
    assert!(traces.contains("pgonce"), "{traces}");
    assert!(!traces.contains(CANARY), "{traces}");
    let log = server.log().unwrap();
    assert!(settings.is_empty() || log.contains("statement"));
    let leaks = leaks(&log);
    assert!(leaks.is_empty(), "{settings:?}: {leaks:#?}");
}

#[tokio::test]
async fn nothing_is_in_the_log_by_default() {
    in_time(nothing_leaks(&[])).await;
}

#[tokio::test]
async fn statements_that_are_logged_hold_no_secret() {
    let all = [
        ("log_statement", "all"),
        ("log_min_duration_statement", "0"),
        ("log_min_error_statement", "debug5"),
    ];
    in_time(nothing_leaks(&all)).await;
    let mut without = all.to_vec();
    without.push(("log_parameter_max_length", "0"));
    without.push(("log_parameter_max_length_on_error", "0"));
    in_time(nothing_leaks(&without)).await;
}

/// Duplicates of every kind but one, of a caller who has said that nobody tried before: done again, under way, waited for, leased, and of one statement.
async fn duplicate<D: TestDriver>(url: &str, pooled: bool) {
    let builder = Once::builder(D::connect(url, 4));
    let builder = if pooled {
        builder.behind_pooler()
    } else {
        builder
    };
    let once = builder.build().unwrap();
    let named = |key: &str| {
        let key = format!("{} {pooled} {key}", D::NAME);
        Intent::new("orders.create", key, &"request").unwrap()
    };
    let done = named("done");
    for _ in 0..3 {
        let run = once.run(&done, async |tx: Attempt<D>| tx.succeed("done").await);
        let _ = run.await.unwrap();
    }
    let leased = named("leased");
    for _ in 0..3 {
        let run = once.run_leased(&leased, async |lease: pgonce::Lease<D>| {
            lease.succeed("done").await
        });
        let _ = run.await.unwrap();
    }
    let held = named("held");
    let Claim::Run(attempt) = once.claim(&held).await.unwrap() else {
        panic!("fresh")
    };
    assert!(matches!(
        once.claim(&held).await.unwrap(),
        Claim::Busy { .. }
    ));
    let waits = once.run(
        &held,
        async |_: Attempt<D>| -> pgonce::Result<pgonce::Done> { panic!("it is done by then") },
    );
    let (waited, ended) = tokio::join!(waits, attempt.succeed(Ack::value("done").unwrap()));
    let _ = ended.unwrap();
    assert!(
        matches!(waited, Ok(_) | Err(Error::Busy { .. })),
        "{waited:?}"
    );
    assert!(once.answer(&held).await.unwrap().is_some());
}

/// A duplicate is what pgonce is for: no error of the server, whose text could name it, and which would count as one.
#[tokio::test]
async fn duplicates_raise_no_error_in_the_server_at_all() {
    in_time(async {
        let server = Postgres::builder().start().await.unwrap();
        install(server.url()).await.unwrap();
        for pooled in [false, true] {
            duplicate::<TokioPostgres>(&server.url(), pooled).await;
            duplicate::<Sqlx>(&server.url(), pooled).await;
        }
        let log = server.log().unwrap();
        let errors: Vec<_> = log.lines().filter(|line| line.contains("ERROR:")).collect();
        assert!(errors.is_empty(), "{errors:#?}");
    })
    .await;
}

/// The password of an address is in no error of a connection that fails.
#[tokio::test]
async fn an_address_that_does_not_answer_keeps_its_password() {
    let url = format!("postgres://user:{CANARY}@127.0.0.1:1/none");
    let intent = Intent::new("orders.create", "key", "request").unwrap();
    for text in [
        failed::<TokioPostgres>(&url, &intent).await,
        failed::<Sqlx>(&url, &intent).await,
    ] {
        assert!(!text.contains(CANARY), "{text}");
    }
}

async fn failed<D: TestDriver + std::fmt::Debug>(url: &str, intent: &Intent) -> String {
    let once = Once::builder(D::connect(url, 1))
        .retry(pgonce::retry::Policy::none())
        .build()
        .unwrap();
    let error = once.claim(intent).await.unwrap_err();
    format!("{error} {error:?} {once:?}")
}
