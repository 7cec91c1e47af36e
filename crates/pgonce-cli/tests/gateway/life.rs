//! From the start to the end, and the end is graceful.

use pgonce_testkit::wait_until;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::fixture::{Fixture, Setup, TIMEOUT};
use crate::listener::{certify, encrypted};
use crate::passing::read_head;
use crate::upstream::Upstream;

#[tokio::test]
async fn on_sigterm_it_finishes_what_is_under_way_and_takes_no_more() {
    for signal in [Signal::TERM, Signal::INT] {
        let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
        let mut gateway = fixture
            .gateway(&Setup::default().in_front_of(&upstream.url))
            .await;
        // Connections on which nothing was ever asked, and on which nothing is under way.
        let unused = TcpStream::connect(gateway.address()).await.unwrap();
        let mut idle = TcpStream::connect(gateway.address()).await.unwrap();
        idle.write_all(b"GET /idle HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let mut idle = tokio::io::BufReader::new(idle);
        assert!(read_head(&mut idle).await.starts_with("HTTP/1.1 201"));

        upstream.hold(true);
        let stop = async {
            wait_until("both calls", TIMEOUT, || async {
                upstream.seen().len() == 3
            })
            .await
            .unwrap();
            gateway.signal(signal);
            wait_until("no more readiness", TIMEOUT, || async {
                gateway.health("/readyz").await == (503, "draining".to_owned())
            })
            .await
            .unwrap();
            wait_until("the door to be shut", TIMEOUT, || async {
                TcpStream::connect(gateway.address()).await.is_err()
            })
            .await
            .unwrap();
            assert_eq!(gateway.health("/healthz").await.0, 200);
            upstream.hold(false);
        };
        let (order, passed, ()) = tokio::join!(gateway.order("k"), gateway.get("/slow"), stop);
        assert_eq!((order.status, passed.status), (201, 201));
        assert_eq!(gateway.end().await, 0, "{}", gateway.log());
        drop((unused, idle));
        assert_eq!(
            fixture.sql("select status::text from pgonce.intent").await,
            ["succeeded"]
        );
    }
}

#[tokio::test]
async fn work_whose_client_has_gone_is_finished_too() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let mut gateway = fixture
        .gateway(&Setup::default().in_front_of(&upstream.url))
        .await;
    upstream.hold(true);
    tokio::select! {
        answer = gateway.try_order("k") => panic!("answered: {answer:?}"),
        asked = wait_until("the call", TIMEOUT, || async { upstream.orders().len() == 1 }) => asked.unwrap(),
    }
    gateway.signal(Signal::TERM);
    wait_until("no more readiness", TIMEOUT, || async {
        gateway.health("/readyz").await.0 == 503
    })
    .await
    .unwrap();
    upstream.hold(false);
    assert_eq!(gateway.end().await, 0, "{}", gateway.log());
    assert_eq!(
        fixture.sql("select status::text from pgonce.intent").await,
        ["succeeded"]
    );
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_cut_off_and_the_exit_code_says_so() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        listen: "drain_timeout = \"200ms\"",
        ..Setup::default()
    };
    let mut gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    upstream.hold(true);
    let stop = async {
        wait_until("the call", TIMEOUT, || async {
            upstream.orders().len() == 1
        })
        .await
        .unwrap();
        gateway.signal(Signal::TERM);
    };
    let (order, ()) = tokio::join!(gateway.try_order("k"), stop);
    assert!(order.is_err(), "{order:?}");
    assert_eq!(gateway.end().await, 1);
    assert!(gateway.log().contains("drain_timeout"), "{}", gateway.log());
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let mut gateway = fixture
        .gateway(&Setup::default().in_front_of(&upstream.url))
        .await;
    upstream.hold(true);
    let stop = async {
        wait_until("the call", TIMEOUT, || async {
            upstream.orders().len() == 1
        })
        .await
        .unwrap();
        gateway.signal(Signal::TERM);
        wait_until("no more readiness", TIMEOUT, || async {
            gateway.health("/readyz").await.0 == 503
        })
        .await
        .unwrap();
        gateway.signal(Signal::TERM);
    };
    let (order, ()) = tokio::join!(gateway.try_order("k"), stop);
    assert!(order.is_err(), "{order:?}");
    assert_eq!(gateway.end().await, 1);
}

#[tokio::test]
async fn what_only_a_restart_changes_is_not_said_to_be_reloaded() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup::default();
    let plain = setup.in_front_of(&upstream.url);
    let gateway = fixture.gateway(&plain).await;
    let memory = Setup {
        listen: "memory = \"256 MiB\"",
        ..setup
    };
    let folder = tempfile::tempdir().unwrap();
    certify(folder.path());
    let tls = encrypted(folder.path());
    let tls = Setup {
        listen: &tls,
        ..Setup::default()
    };
    let changed = [
        memory.in_front_of(&upstream.url),
        format!("{plain}[encryption]\nkeys_env = \"PGONCE_KEYS\"\n"),
        tls.in_front_of(&upstream.url),
    ];
    for (before, (text, what)) in changed
        .iter()
        .zip(["listen.memory", "encryption", "listen.tls"])
        .enumerate()
    {
        assert_eq!(gateway.log().matches("not reloaded").count(), before);
        std::fs::write(gateway.file(), text).unwrap();
        gateway.signal(Signal::HUP);
        wait_until("the refusal", TIMEOUT, || async {
            assert!(!gateway.log().contains("\"reloaded\""), "{}", gateway.log());
            gateway.log().matches("not reloaded").count() > before
        })
        .await
        .unwrap();
        let why = format!("{what} changes only with a restart");
        assert!(gateway.log().contains(&why), "{}", gateway.log());
    }
    assert_eq!(gateway.order("k").await.status, 201);
}
