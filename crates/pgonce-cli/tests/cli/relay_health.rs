//! What a relay says of itself: health, readiness and metrics; and what all that run on say while their database is away.

use std::sync::Mutex;

use pgonce_testkit::wait_until;
use rustix::process::Signal;
use serde_json::Value;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpSocket, TcpStream};

use crate::relay::{DEADLINE, Running, get, publish, with_subscription};

#[tokio::test]
async fn health_readiness_and_metrics_show_its_state() {
    let fixture = with_subscription().await;
    fixture.ok(&["outbox", "subscriptions", "create", "forgotten"]);
    let mut relay = Running::billing(&fixture, &["--listen", "127.0.0.1:0"]);
    let admin = relay.admin().await;
    assert_eq!(get(&admin, "/healthz").await.0, 200);
    publish(&fixture, 1, 5).await;
    // What subscriptions have stored, of two tenants.
    for (id, tenant) in [("m1", "a"), ("m2", "b")] {
        let stored = format!(
            "select pgonce.store_message('ledger', 'shop', '{id}', '{{}}', p_tenant => '{tenant}')"
        );
        fixture.sql(&stored).await;
    }
    relay.wait_for(5).await;
    let (status, body) = get(&admin, "/readyz").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["status"]), (200, &"ready".into()), "{body}");
    assert_eq!(body["relays"][0]["subscription"], "billing");

    let page = Mutex::new(String::new());
    wait_until("the counts", DEADLINE, || async {
        let run = get(&admin, "/metrics").await.1;
        *page.lock().unwrap() = run.clone();
        run.contains("pgonce_relay_events_total{subscription=\"billing\",outcome=\"sent\"} 5")
            && run.contains("pgonce_outbox_waiting{subscription=\"billing\"} 0")
    })
    .await
    .unwrap_or_else(|error| panic!("{error}: {}", page.lock().unwrap()));
    let page = page.into_inner().unwrap();
    for line in [
        "pgonce_relay_lanes{subscription=\"billing\"} 16",
        "pgonce_outbox_waiting{subscription=\"forgotten\"} 5",
        "pgonce_outbox_lanes_held{subscription=\"billing\"} 16",
        "pgonce_outbox_parked{subscription=\"billing\",state=\"dead\"} 0",
        "pgonce_inbox_messages{consumer=\"ledger\",state=\"received\"} 2",
        "pgonce_inbox_messages{consumer=\"ledger\",state=\"poison\"} 0",
        "pgonce_inbox_held{consumer=\"ledger\"} 0",
        "pgonce_database_up 1",
    ] {
        assert!(
            page.lines().any(|run| run == line),
            "{line} is not in\n{page}"
        );
    }
    let lags = page.lines().find_map(|line| {
        line.strip_prefix("pgonce_relay_lag_seconds_count{subscription=\"billing\"} ")
    });
    // One for each batch, of which there are one to five.
    let lags: u64 = lags.unwrap().parse().unwrap();
    assert!((1..=5).contains(&lags), "{page}");
    // Nothing is run that the page of the docs does not list.
    let docs = include_str!("../../../../docs/src/reference/metrics.md");
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(
            docs.contains(&format!("| `{name}`")),
            "{name} is not documented"
        );
    }

    fixture.sql("select pgonce._move_clock('10 minutes')").await;
    let (_, page) = get(&admin, "/metrics").await;
    assert!(
        page.contains("pgonce_outbox_stuck{subscription=\"forgotten\"} 1"),
        "{page}"
    );
    let oldest = "pgonce_inbox_oldest_age_seconds{consumer=\"ledger\"} ";
    let age = page.lines().find_map(|line| line.strip_prefix(oldest));
    assert!(age.unwrap().parse::<f64>().unwrap() >= 600.0, "{page}");
    // With nothing left the figures are 0, and not the last that there was.
    fixture
        .sql("update pgonce.inbox_message set skipped_at = pgonce.now()")
        .await;
    let (_, page) = get(&admin, "/metrics").await;
    let none = "pgonce_inbox_messages{consumer=\"ledger\",state=\"received\"} 0";
    assert!(page.lines().any(|line| line == none), "{page}");
    relay.signal(Signal::TERM);
    assert_eq!(relay.end().await, 0, "{}", relay.log());
}

#[tokio::test]
async fn a_database_that_is_away_at_the_start_is_waited_for() {
    let fixture = with_subscription().await;
    publish(&fixture, 1, 3).await;
    // A place that nobody listens at, until it leads to the server.
    let place = TcpSocket::new_v4().unwrap();
    place.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let away = place.local_addr().unwrap();
    let url = fixture.database.url();
    let (user, rest) = url.split_once('@').unwrap();
    let (server, name) = rest.split_once('/').unwrap();
    let away = format!("{user}@{away}/{name}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("work.toml");
    let text = "listen.address = \"127.0.0.1:0\"\nlog.format = \"json\"\n[[workers]]\nqueues = [\"q\"]\nsql = \"f\"\n";
    std::fs::write(&file, text).unwrap();
    let usual = ["--listen", "127.0.0.1:0", "--log-format", "json"];
    let relay = ["--subscription", "billing", "--sink", "stdout:"];
    let consume = ["--consumer", "c", "--source", "outbox:c", "--sql", "f"];
    let webhooks = ["--consumer", "c", "--source", "s"];
    let start = |command: &str, args: &[&str]| {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned();
        let variables = [
            ("DATABASE_URL", away.clone()),
            ("PGONCE_WEBHOOK_SECRET", secret),
        ];
        Running::with(&fixture, command, args, &variables)
    };
    for (command, args) in [
        ("consume", [&consume[..], &usual].concat()),
        ("work", vec![file.to_str().unwrap()]),
        ("webhooks", [&webhooks[..], &usual].concat()),
        ("relay", [&relay[..], &usual].concat()),
    ] {
        let mut running = start(command, &args);
        let admin = running.admin().await;
        assert_eq!(get(&admin, "/readyz").await.0, 503, "{command}");
        running.signal(Signal::TERM);
        assert_eq!(running.end().await, 0, "{command}: {}", running.log());
    }
    let mut relay = start("relay", &[&relay[..], &usual].concat());
    let admin = relay.admin().await;
    let (status, body) = get(&admin, "/readyz").await;
    assert!(
        status == 503 && body.contains("the next try of pgonce relay"),
        "{body}"
    );
    let (listener, server) = (place.listen(64).unwrap(), server.to_owned());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(&server).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    relay.wait_for(3).await;
    wait_until("readiness", DEADLINE, || async {
        get(&admin, "/readyz").await.0 == 200
    })
    .await
    .unwrap();
    relay.signal(Signal::TERM);
    assert_eq!(relay.end().await, 0, "{}", relay.log());
}
