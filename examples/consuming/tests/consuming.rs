//! Everything comes many times and in disorder; the end is the same.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use consuming::{Db, SCHEMA, balance, connect, invoice, profile, webhook};
use pgonce::Once;
use pgonce::driver::Driver;
use pgonce::inbox::Message;
use pgonce::migrate::Migrator;
use pgonce_broker::sources::Channel;
use pgonce_broker::webhooks::Scheme;
use pgonce_broker::{Consumer, Handler, Source};
use pgonce_testkit::{Database, shared, wait_until};
use ring::hmac;
use serde_json::json;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(60);

struct Place {
    once: Once<Db>,
    _database: Database,
}

async fn install(url: String) -> Result<(), pgonce::Error> {
    let once = connect(&url).await?;
    Migrator::new(once.driver().clone()).up().await?;
    sqlx::raw_sql(SCHEMA).execute(once.driver().pool()).await?;
    Ok(())
}

impl Place {
    async fn new() -> Self {
        let server = shared(None).await.unwrap();
        server.template("consuming", install).await.unwrap();
        let database = server.database_from("consuming").await.unwrap();
        let once = connect(&database.url()).await.unwrap();
        Self {
            once,
            _database: database,
        }
    }

    /// The first column of the first row; empty where there is no row yet.
    async fn text(&self, sql: &'static str) -> String {
        sqlx::query_scalar::<_, Option<String>>(sql)
            .fetch_optional(self.once.driver().pool())
            .await
            .unwrap()
            .flatten()
            .unwrap_or_default()
    }

    async fn wait_for(&self, sql: &'static str, expected: &str) {
        let waited = wait_until(expected.to_owned(), DEADLINE, || async {
            self.text(sql).await == expected
        });
        if waited.await.is_err() {
            assert_eq!(self.text(sql).await, expected);
        }
    }
}

async fn while_running<D: Driver, S: Source, H: Handler<D>>(
    consumer: Consumer<D, S, H>,
    test: impl Future<Output = ()>,
) {
    let stop = CancellationToken::new();
    let running = tokio::spawn(consumer.run(stop.clone()));
    test.await;
    stop.cancel();
    running.await.unwrap().unwrap();
}

/// Sends messages five times over, the odd rounds backwards.
fn storm(channel: &Channel, messages: &[Message]) {
    for round in 0..5 {
        let mut order: Vec<_> = messages.to_vec();
        if round % 2 == 1 {
            order.reverse();
        }
        order.into_iter().for_each(|message| channel.send(message));
    }
}

#[tokio::test]
async fn balances_count_each_delta_once_and_can_be_made_anew() {
    let place = Place::new().await;
    let pool = place.once.driver().pool();
    let sql = "select pgonce.publish('money', 'moved', 'account-' || i % 3, jsonb_build_object('delta', i)) from generate_series(1, 60) i";
    sqlx::query(sql).execute(pool).await.unwrap();
    let events: Vec<(String, String, String)> = sqlx::query_as(
        "select message_id::text, subject, payload::text from pgonce.outbox order by seq",
    )
    .fetch_all(pool)
    .await
    .unwrap();
    let events: Vec<_> = events
        .into_iter()
        .map(|(id, subject, payload)| Message::new(id, payload).key(subject))
        .collect();
    let bank = Channel::new("bank");
    storm(&bank, &events);
    let state = "select string_agg(account || '=' || amount, ' ' order by account) from balance";
    while_running(balance::consumer(&place.once, bank.source()), async {
        place
            .wait_for(state, "account-0=630 account-1=590 account-2=610")
            .await;
        wait_until("acknowledgements".to_owned(), DEADLINE, || async {
            bank.acked() == 300
        })
        .await
        .unwrap();
    })
    .await;
    let inbox = place.once.inbox();
    assert!(inbox.verify("balance").await.unwrap().is_equal());
    sqlx::query("delete from balance")
        .execute(pool)
        .await
        .unwrap();
    inbox.rebuild("balance").await.unwrap();
    assert_eq!(
        place.text(state).await,
        "account-0=630 account-1=590 account-2=610"
    );
}

#[tokio::test]
async fn profiles_end_at_their_newest_version_whatever_the_order() {
    let place = Place::new().await;
    let people = Channel::new("people");
    let event = |user: i64, version: i64| {
        let payload = json!({"version": version, "name": format!("name {version}")}).to_string();
        Message::new(format!("{user}-{version}"), payload).key(format!("user-{user}"))
    };
    let mut events: Vec<_> = (1..=3)
        .flat_map(|user| (1..=10).map(move |v| event(user, v)))
        .collect();
    events.push(Message::new("broken", "{}").key("user-9"));
    storm(&people, &events);
    let state =
        "select string_agg(id || '=' || name, ' ' order by id) from profile where version = 10";
    while_running(profile::consumer(&place.once, people.source()), async {
        place
            .wait_for(state, "user-1=name 10 user-2=name 10 user-3=name 10")
            .await;
        place
            .wait_for("select failure_code from pgonce.inbox_poison", "incomplete")
            .await;
    })
    .await;
}

#[tokio::test]
async fn an_order_that_is_paid_gets_one_invoice_and_one_event() {
    let place = Place::new().await;
    let shop = Channel::new("shop");
    let events: Vec<_> = (1..=20)
        .map(|n| {
            let payload = json!({"order": format!("order-{n}"), "amount": n}).to_string();
            Message::new(format!("evt-{n}"), payload)
                .key(format!("order-{n}"))
                .kind("order.paid")
        })
        .collect();
    storm(&shop, &events);
    while_running(invoice::consumer(&place.once, shop.source()), async {
        wait_until("acknowledgements".to_owned(), DEADLINE, || async {
            shop.acked() == 100
        })
        .await
        .unwrap();
    })
    .await;
    let invoices = "select count(*) || ' ' || sum(amount) from invoice";
    assert_eq!(place.text(invoices).await, "20 210");
    let events = "select count(*) || ' ' || count(distinct subject) from pgonce.outbox where type = 'invoice.written'";
    assert_eq!(place.text(events).await, "20 20");
}

#[tokio::test]
async fn a_webhook_is_applied_and_published_once_and_a_forged_one_is_not() {
    let place = Place::new().await;
    let secret = "whsec_c2VjcmV0IG9mIHRoZSBwcm92aWRlcg==";
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"secret of the provider");
    let router = webhook::router(&place.once, Scheme::standard([secret]).unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "http://{}/webhooks/provider",
        listener.local_addr().unwrap()
    );
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let client = reqwest::Client::new();
    let at = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let send = async |id: &str, body: String, forged: bool| {
        let tag = hmac::sign(&key, format!("{id}.{at}.{body}").as_bytes());
        let tag = STANDARD.encode(if forged { &[7; 32] } else { tag.as_ref() });
        let request = client.post(&url).header("webhook-id", id).body(body);
        let request = request.header("webhook-timestamp", at.to_string());
        let sent = request
            .header("webhook-signature", format!("v1,{tag}"))
            .send()
            .await;
        sent.unwrap().status().as_u16()
    };
    while_running(webhook::consumer(&place.once), async {
        for n in 1..=5 {
            for (step, kind) in ["payment.captured", "payment.refunded"].iter().enumerate() {
                let body = json!({"type": kind, "payment": format!("pay-{n}")}).to_string();
                for _ in 0..3 {
                    assert_eq!(
                        send(&format!("evt-{n}-{step}"), body.clone(), false).await,
                        200
                    );
                }
                assert_eq!(send(&format!("forged-{n}"), body, true).await, 401);
            }
        }
        place
            .wait_for(
                "select count(*) || ' ' || min(status) from payment where status = 'refunded'",
                "5 refunded",
            )
            .await;
    })
    .await;
    server.abort();
    let published = "select string_agg(distinct type || ' ' || n, ', ') from (select type, count(*) n from pgonce.outbox group by type) t";
    assert_eq!(
        place.text(published).await,
        "payment.captured 5, payment.refunded 5"
    );
}
