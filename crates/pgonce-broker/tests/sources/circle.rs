//! The full circle: an intent publishes, a relay sends to NATS, a consumer keeps balances. Everything is sent and
//! delivered more than once, and the balances are right.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use pgonce::inbox::{Message, Tx};
use pgonce::outbox::{Event, Subscription};
use pgonce::{Ack, Intent};
use pgonce_broker::sinks::{Options, open};
use pgonce_broker::sources::{Nats, NatsConfig};
use pgonce_broker::{Consumer, Relay};
use pgonce_testkit::shared_nats;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::fixture::{Db, Fixture, Running, quick};

const ORDERS: u64 = 100;
const ACCOUNTS: u64 = 5;

async fn order(fixture: &Fixture, n: u64) {
    let account = format!("account-{}", n % ACCOUNTS);
    let body = json!({"account": account, "amount": n});
    let intent = Intent::new("orders.create", format!("order-{n}"), &body).unwrap();
    let ran = fixture
        .world
        .owner
        .run(&intent, async |mut attempt: pgonce::Attempt<Db>| {
            let event = Event::new("orders", "order.paid")
                .subject(&account)
                .payload(&body)?;
            attempt.publish(&event).await?;
            attempt.succeed(Ack::value(&json!({"n": n}))?).await
        });
    let _ = ran.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_an_intent_to_a_balance_every_copy_counts_once() {
    let (fixture, nats) = (Fixture::new().await, shared_nats().await.unwrap());
    let see = &fixture.world.see;
    see.run("create table balance (account text primary key, amount bigint not null)")
        .await;
    let outbox = fixture.world.owner.outbox();
    outbox
        .create_subscription(&Subscription::new("r"))
        .await
        .unwrap();
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let config = stream::Config {
        name: "CIRCLE".to_owned(),
        subjects: vec!["circle.>".to_owned()],
        // It forgets ids at once, so that what is sent again is delivered again.
        duplicate_window: Duration::from_millis(100),
        ..stream::Config::default()
    };
    context.create_stream(config).await.unwrap();

    let url = format!("{}?stream=CIRCLE&subject=circle.{{topic}}", nats.url());
    let sink = open(&url, &Options::new()).await.unwrap();
    let relay = Relay::new(fixture.once().outbox(), "r", sink);
    let sent = relay.counts();
    let stop = CancellationToken::new();
    let relaying = tokio::spawn(relay.run(stop.clone()));

    let add = |mut tx: Tx<Db>, message: Arc<Message>| async move {
        let event = message.json()?;
        let (account, amount) = (event["account"].as_str(), event["amount"].as_i64());
        let sql = "insert into balance values ($1, $2) \
                   on conflict (account) do update set amount = balance.amount + excluded.amount";
        tx.conn().execute(sql, &[&account, &amount]).await?;
        Ok(())
    };
    let mut workers = Vec::new();
    let mut counts = Vec::new();
    for _ in 0..2 {
        let mut config = NatsConfig::durable(nats.url(), "CIRCLE", "balances");
        config.ack_wait = Duration::from_millis(500);
        let source = Nats::connect(config).await.unwrap();
        let consumer = quick(Consumer::new(&fixture.once(), "c", source, add)).json();
        counts.push(consumer.counts());
        workers.push(Running::start(consumer));
    }

    for n in 1..=ORDERS {
        order(&fixture, n).await;
        // The client did not get the response, and asks again.
        order(&fixture, n).await;
    }
    fixture
        .wait("the events", || async { sent.sent() >= ORDERS })
        .await;
    // The relay's place is lost, twice; one worker dies meanwhile.
    for round in 2..=3 {
        outbox.replay_from("r", 1).await.unwrap();
        if let Some(worker) = workers.pop().filter(|_| round == 2) {
            worker.kill().await;
            let source = Nats::connect(NatsConfig::durable(nats.url(), "CIRCLE", "balances"));
            let consumer = quick(Consumer::new(
                &fixture.once(),
                "c",
                source.await.unwrap(),
                add,
            ))
            .json();
            counts.push(consumer.counts());
            workers.push(Running::start(consumer));
        }
        fixture
            .wait("the replay", || async { sent.sent() >= ORDERS * round })
            .await;
    }
    let settled = || async {
        let stream = context.get_stream("CIRCLE").await.unwrap();
        let reply = stream.consumer_info("balances").await.unwrap();
        reply.num_pending + reply.num_ack_pending as u64 == 0
    };
    fixture.wait("everything to be settled", settled).await;
    for worker in workers {
        worker.stop().await.unwrap();
    }
    stop.cancel();
    relaying.await.unwrap().unwrap();

    for account in 0..ACCOUNTS {
        let expected: u64 = (1..=ORDERS).filter(|n| n % ACCOUNTS == account).sum();
        let sql = format!("select amount from balance where account = 'account-{account}'");
        assert_eq!(see.number(&sql).await as u64, expected, "account-{account}");
    }
    let copies: u64 = counts.iter().map(|counts| counts.duplicates()).sum();
    assert!(copies > 0, "no copy ever came: the test shows nothing");
}
