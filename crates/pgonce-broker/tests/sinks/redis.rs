//! Redis Streams.

use std::sync::{Arc, Mutex};

use pgonce_broker::sinks::{Options, open};
use pgonce_testkit::{Redis, shared_redis, wait_until};
use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use redis::streams::StreamRangeReply;

use super::conformance::{Got, Site, Stage, conforms};
use super::fixture::{DEADLINE, Running};
use pgonce_tests::{Server, connect_redis, unique};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

struct RedisSite {
    server: Server<Redis>,
    name: String,
}

impl RedisSite {
    async fn client(&self) -> MultiplexedConnection {
        connect_redis(&self.server.url()).await
    }

    fn key(&self) -> String {
        format!("{}:orders", self.name)
    }
}

impl Site for RedisSite {
    const DEDUPLICATES: bool = false;

    async fn start(private: bool) -> Self {
        let server = match private {
            true => Server::Own(Redis::start().await.unwrap()),
            false => Server::Shared(shared_redis().await.unwrap()),
        };
        let name = unique("redis");
        Self { server, name }
    }

    fn address(&self) -> (String, Options) {
        let url = format!("{}?stream={}:{{topic}}", self.server.url(), self.name);
        (url, Options::new())
    }

    async fn got(&self) -> Vec<Got> {
        let entries: StreamRangeReply = self.client().await.xrange_all(self.key()).await.unwrap();
        let entries = entries.ids.into_iter().map(|entry| {
            let field = |name: &str| entry.get::<String>(name).unwrap();
            assert_eq!(field("type"), "order.changed");
            Got::new(&field("id"), &field("subject"), field("data").as_bytes())
        });
        entries.collect()
    }

    async fn kill(&self) {
        self.server.kill().await.unwrap();
    }

    async fn restart(&self) {
        self.server.restart().await.unwrap();
    }
}

conforms!(RedisSite);

#[tokio::test]
async fn what_is_no_stream_parks_only_what_goes_there() {
    let stage = Stage::<RedisSite>::new(false).await;
    let key = format!("{}:taken", stage.site.name);
    let () = stage.site.client().await.set(&key, "a text").await.unwrap();
    let running = Running::start(stage.relay_to(stage.site.sink().await));
    // In one batch with the others.
    let mixed = "select pgonce.publish(case when i % 5 = 0 then 'taken' else 'orders' end, 'order.changed', \
         's' || i % 5, jsonb_build_object('n', i)) from generate_series(1, 40) i";
    stage.fixture.world.see.run(mixed).await;
    let letters = stage.dead_letters(1).await;
    let reason = letters[0].reason.clone().unwrap();
    assert!(reason.contains("WRONGTYPE"), "{reason}");
    assert_eq!((letters[0].subject.as_str(), letters[0].behind), ("s0", 7));
    pgonce_testkit::wait_until("the others", super::fixture::DEADLINE, || async {
        stage.site.got().await.len() == 32
    })
    .await
    .unwrap();
    let () = stage.site.client().await.del(&key).await.unwrap();
    stage.fixture.outbox.redrive("c", None).await.unwrap();
    pgonce_testkit::wait_until("the redriven", super::fixture::DEADLINE, || async {
        let length: u64 = stage.site.client().await.xlen(&key).await.unwrap();
        length == 8
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
    assert_eq!(stage.check(&stage.site.got().await).await, 0);
}

#[tokio::test]
async fn a_subject_that_changes_streams_keeps_its_order_across_them() {
    let stage = Stage::<RedisSite>::new(false).await;
    let key = format!("{}:taken", stage.site.name);
    let () = stage.site.client().await.set(&key, "a text").await.unwrap();
    // In one batch: of s1 every second event goes where no stream is, the first of them first. All of s2 can go.
    let mixed = "select pgonce.publish(case when i % 4 = 1 then 'taken' else 'orders' end, 'order.changed', \
         case when i % 2 = 1 then 's1' else 's2' end, jsonb_build_object('n', i)) from generate_series(1, 16) i";
    stage.fixture.world.see.run(mixed).await;
    let running = Running::start(stage.relay_to(stage.site.sink().await));
    let letters = stage.dead_letters(1).await;
    assert_eq!((letters[0].subject.as_str(), letters[0].behind), ("s1", 7));
    let wait_for = async |count: usize| {
        pgonce_testkit::wait_until("the events", super::fixture::DEADLINE, || async {
            stage.site.got().await.len() >= count
        })
        .await
        .unwrap();
        stage.site.got().await
    };
    let got = wait_for(8).await;
    assert!(got.iter().all(|one| one.subject == "s2"), "{got:?}");
    let () = stage.site.client().await.del(&key).await.unwrap();
    stage.fixture.outbox.redrive("c", None).await.unwrap();
    let got = wait_for(12).await;
    running.stop().await.unwrap();
    assert_eq!(stage.check(&got).await, 0);
    let length: u64 = stage.site.client().await.xlen(&key).await.unwrap();
    assert_eq!(length, 4);
}

#[tokio::test]
async fn a_full_server_is_waited_for_and_nothing_is_parked() {
    let stage = Stage::<RedisSite>::new(true).await;
    let mut client = stage.site.client().await;
    let set = async |client: &mut MultiplexedConnection, bytes: &str| {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("maxmemory").arg(bytes);
        let () = command.query_async(client).await.unwrap();
    };
    let sink = stage.site.sink().await;
    set(&mut client, "1").await;
    let relay = stage.relay_to(sink);
    let counts = relay.counts();
    let running = Running::start(relay);
    stage.fixture.publish(1, 30, 4).await;
    let refusals = async || {
        let mut client = stage.site.client().await;
        let reply: String = redis::cmd("INFO")
            .arg("errorstats")
            .query_async(&mut client)
            .await
            .unwrap();
        reply.contains("errorstat_OOM")
    };
    pgonce_testkit::wait_until("a refusal", super::fixture::DEADLINE, refusals)
        .await
        .unwrap();
    set(&mut client, "0").await;
    let got = stage.wait_for(30).await;
    assert_eq!(stage.check(&got).await, 0);
    running.stop().await.unwrap();
    assert_eq!((counts.dead(), counts.retried()), (0, 0));
}

#[tokio::test]
async fn a_stream_keeps_about_as_many_as_configured() {
    let stage = Stage::<RedisSite>::new(false).await;
    let (url, options) = stage.site.address();
    let sink = open(&url, &options.set("maxlen", "100")).await.unwrap();
    let relay = stage.relay_to(sink);
    let counts = relay.counts();
    let running = Running::start(relay);
    let many = "select pgonce.publish('orders', 'order.changed', 's' || i, jsonb_build_object('n', i)) \
         from generate_series(1, 1000) i";
    stage.fixture.world.see.run(many).await;
    pgonce_testkit::wait_until("all to be sent", super::fixture::DEADLINE, || async {
        counts.sent() == 1000
    })
    .await
    .unwrap();
    let left = stage.site.got().await.len();
    assert!((100..400).contains(&left), "{left}");
    running.stop().await.unwrap();
}

/// An address that leads new connections where it says, and leaves the others where they are.
async fn address_of(port: Arc<Mutex<u16>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let port = *port.lock().unwrap();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    format!("redis://{address}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_the_relay_goes_on_at_the_new_primary_by_itself() {
    let mut stage = Stage::<RedisSite>::new(true).await;
    let next = Redis::start().await.unwrap();
    let leads_to = Arc::new(Mutex::new(stage.site.server.port()));
    let address = address_of(leads_to.clone()).await;
    let url = format!("{address}?stream={}:{{topic}}", stage.site.name);
    let relay = stage.relay_to(open(&url, &Options::new()).await.unwrap());
    let counts = relay.counts();
    let running = Running::start(relay);
    stage.fixture.publish(1, 10, 3).await;
    stage.wait_for(10).await;
    wait_until("all to be sent", DEADLINE, || async { counts.sent() >= 10 })
        .await
        .unwrap();

    // The old primary lives on as a replica, which nobody may write to.
    *leads_to.lock().unwrap() = next.port();
    let mut demote = redis::cmd("REPLICAOF");
    demote.arg("127.0.0.1").arg(next.port());
    let () = demote
        .query_async(&mut stage.site.client().await)
        .await
        .unwrap();
    let _old = std::mem::replace(&mut stage.site.server, Server::Own(next));
    stage.fixture.publish(11, 20, 3).await;
    let all_there = async || {
        let got = stage.site.got().await;
        (11..=20).all(|n| got.iter().any(|event| event.n == n))
    };
    wait_until("the rest at the new one", DEADLINE, all_there)
        .await
        .unwrap();
    running.stop().await.unwrap();
    assert_eq!((counts.dead(), counts.retried()), (0, 0));
}

#[tokio::test]
async fn a_right_that_is_missing_for_a_while_makes_no_dead_letter() {
    let stage = Stage::<RedisSite>::new(false).await;
    let user = &stage.site.name;
    let allow = async |keys: String| {
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg(user).arg("on").arg(">secret");
        command.arg("+@all").arg("resetkeys").arg(keys);
        let () = command
            .query_async(&mut stage.site.client().await)
            .await
            .unwrap();
    };
    allow("~elsewhere".to_owned()).await;
    let (url, options) = stage.site.address();
    let url = url.replace("redis://", &format!("redis://{user}:secret@"));
    let running = Running::start(stage.relay_to(open(&url, &options).await.unwrap()));
    stage.fixture.publish(1, 6, 1).await;
    let reason = stage.retried(1).await;
    assert!(reason.contains("no permissions"), "{reason}");
    allow(format!("~{user}:*")).await;
    let got = stage.wait_for(6).await;
    assert_eq!(stage.check(&got).await, 0);
    running.stop().await.unwrap();
}
