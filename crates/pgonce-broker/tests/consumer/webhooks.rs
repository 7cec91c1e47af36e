//! Signed webhooks: nothing unsigned is stored, and nothing is acknowledged before it is durable.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pgonce_broker::Consumer;
use pgonce_broker::sources::Nothing;
use pgonce_broker::webhooks::{Encoding, Scheme, Webhooks};
use pgonce_tests::Cutter;
use reqwest::{Client, Response};
use ring::hmac;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use super::fixture::{DEADLINE, Fixture, Running, quick};

const SECRET: &str = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0";

struct Hook {
    url: String,
    client: Client,
    _server: tokio::task::JoinHandle<()>,
}

impl Hook {
    async fn serve(router: axum::Router) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            url,
            client: Client::new(),
            _server: server,
        }
    }

    async fn standard(&self, id: &str, body: &str, at: u64, secret: &str) -> Response {
        let key = STANDARD
            .decode(secret.trim_start_matches("whsec_"))
            .unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        let tag = hmac::sign(&key, format!("{id}.{at}.{body}").as_bytes());
        let request = self
            .client
            .post(&self.url)
            .header("webhook-id", id)
            .header("webhook-timestamp", at.to_string())
            .header(
                "webhook-signature",
                format!("v1,bm9wZQ== v1,{}", STANDARD.encode(tag)),
            )
            .body(body.to_owned());
        request.send().await.unwrap()
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

fn scheme() -> Scheme {
    Scheme::standard(["whsec_b2xkIHNlY3JldA==", SECRET]).unwrap()
}

#[tokio::test]
async fn a_signed_webhook_is_stored_answered_and_applied_once() {
    let fixture = Fixture::new().await;
    let hook =
        Hook::serve(Webhooks::new(&fixture.once(), "c", "provider", scheme()).router("/hook"))
            .await;
    let consumer = Consumer::new(&fixture.once(), "c", Nothing, fixture.witness.clone());
    let running = Running::start(quick(consumer).json());
    for n in 1..=10 {
        for _ in 0..3 {
            let reply = hook
                .standard(&format!("m{n}"), "{\"paid\": true}", now(), SECRET)
                .await;
            assert_eq!(reply.status(), 200);
            // Answered only when it is stored.
            let there =
                format!("select count(*) from pgonce.inbox_message where message_id = 'm{n}'");
            assert_eq!(fixture.world.see.number(&there).await, 1);
        }
    }
    fixture.wait_for(10).await;
    running.stop().await.unwrap();
    fixture.check().await;
    let headers = "select count(*) from pgonce.inbox_message where headers ? 'webhook-timestamp' and not headers ? 'webhook-signature'";
    assert_eq!(fixture.world.see.number(headers).await, 10);
}

/// Nobody says that its connection is gone: the sender gets an answer all the same, and the next one a connection.
#[tokio::test]
async fn a_database_that_falls_silent_does_not_hold_the_receiver() {
    let fixture = Fixture::new().await;
    let world = &fixture.world;
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let once = world.another_at(&cutter.url_for(world.database()), 1, |b| b);
    let hook = Hook::serve(Webhooks::new(&once, "c", "provider", scheme()).router("/hook")).await;
    let send = async |id: &str| {
        let sent = hook.standard(id, "{}", now(), SECRET);
        let reply = tokio::time::timeout(DEADLINE, sent).await;
        reply.expect("the sender gets an answer").status().as_u16()
    };
    assert_eq!(send("m1").await, 200);
    cutter.fall_silent();
    cutter.speak();
    assert_eq!(send("m2").await, 503);
    assert_eq!(send("m2").await, 200);
    let stored = "select count(*) from pgonce.inbox_message";
    assert_eq!(world.see.number(stored).await, 2);
}

#[tokio::test]
async fn what_is_not_signed_or_too_old_is_refused_and_not_stored() {
    let fixture = Fixture::new().await;
    let hook = Hook::serve(
        Webhooks::new(&fixture.once(), "c", "provider", scheme())
            .max_bytes(1000)
            .router("/hook"),
    )
    .await;
    let code = async |response: Response| {
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        let body: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        (status, body["code"].as_str().unwrap_or_default().to_owned())
    };
    let other = "whsec_YW5vdGhlciBzZWNyZXQ=";
    for (response, expected) in [
        (
            hook.standard("m1", "{}", now(), other).await,
            (401, "signature_wrong"),
        ),
        (
            hook.standard("m1", "{}", now() - 301, SECRET).await,
            (401, "timestamp_outside_window"),
        ),
        (
            hook.standard("m1", "{}", now() + 400, SECRET).await,
            (401, "timestamp_outside_window"),
        ),
        (
            hook.client.post(&hook.url).body("{}").send().await.unwrap(),
            (401, "signature_missing"),
        ),
        (
            hook.standard("m1", &"x".repeat(1001), now(), SECRET).await,
            (413, ""),
        ),
    ] {
        let (status, said) = code(response).await;
        assert_eq!((status, said.as_str()), expected);
    }
    // The body that was signed is the body that counts.
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(&SECRET[6..]).unwrap());
    let at = now();
    let tag = hmac::sign(&key, format!("m1.{at}.{{}}").as_bytes());
    let bent = hook
        .client
        .post(&hook.url)
        .header("webhook-id", "m1")
        .header("webhook-timestamp", at.to_string())
        .header("webhook-signature", format!("v1,{}", STANDARD.encode(tag)))
        .body("{\"amount\": 1000}");
    assert_eq!(bent.send().await.unwrap().status(), 401);
    assert_eq!(
        fixture
            .world
            .see
            .number("select count(*) from pgonce.inbox_message")
            .await,
        0
    );
    assert_eq!(
        fixture
            .world
            .see
            .number("select count(*) from pgonce.inbox_marker")
            .await,
        0
    );
}

#[tokio::test]
async fn the_same_id_with_another_payload_is_refused_and_stored_for_an_operator() {
    let fixture = Fixture::new().await;
    let hook =
        Hook::serve(Webhooks::new(&fixture.once(), "c", "provider", scheme()).router("/hook"))
            .await;
    assert_eq!(
        hook.standard("m1", "one", now(), SECRET).await.status(),
        200
    );
    for _ in 0..3 {
        assert_eq!(
            hook.standard("m1", "two", now(), SECRET).await.status(),
            422
        );
    }
    let poison = fixture.inbox.poison("c", 10).await.unwrap();
    assert_eq!(
        (poison.len(), poison[0].code.as_deref()),
        (1, Some("P4050"))
    );
}

/// A public key is known to many: it checks signatures of its private key, and no HMAC that was made with it.
#[tokio::test]
async fn a_public_key_checks_signatures_of_its_private_key_and_no_others() {
    let fixture = Fixture::new().await;
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let public = pair.public_key().as_ref();
    let key = format!("whpk_{}", STANDARD.encode(public));
    let scheme = Scheme::standard([&*key]).unwrap();
    let hook =
        Hook::serve(Webhooks::new(&fixture.once(), "c", "signed", scheme).router("/hook")).await;
    let at = now();
    let content = format!("m1.{at}.{{}}");
    let signed = STANDARD.encode(pair.sign(content.as_bytes()));
    let other = Ed25519KeyPair::from_seed_unchecked(&[8; 32]).unwrap();
    let by_another = STANDARD.encode(other.sign(content.as_bytes()));
    let forged = hmac::Key::new(hmac::HMAC_SHA256, public);
    let forged = STANDARD.encode(hmac::sign(&forged, content.as_bytes()));
    for (signature, body, status) in [
        (format!("v1,{forged}"), "{}", 401),
        (format!("v1a,{forged}"), "{}", 401),
        (format!("v1,{signed}"), "{}", 401),
        (format!("v1a,{by_another}"), "{}", 401),
        (format!("v1a,{signed}"), "{ }", 401),
        (
            format!("v1,{forged} v1a,{by_another} v1a,{signed}"),
            "{}",
            200,
        ),
    ] {
        let request = hook.client.post(&hook.url).body(body);
        let request = request
            .header("webhook-id", "m1")
            .header("webhook-timestamp", at.to_string())
            .header("webhook-signature", &signature);
        assert_eq!(
            request.send().await.unwrap().status(),
            status,
            "{signature}"
        );
    }
    for wrong in ["whpk_", "whpk_c2hvcnQ=", "whsec_"] {
        assert!(Scheme::standard([wrong]).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn other_schemes_can_be_configured() {
    let fixture = Fixture::new().await;
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"secret");
    let hex = |tag: hmac::Tag| {
        tag.as_ref()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect::<String>()
    };

    let hub = Scheme::hmac(["secret"], "X-Hub-Signature-256", Encoding::Hex)
        .prefixed("sha256=")
        .id_header("x-delivery");
    let hook = Hook::serve(Webhooks::new(&fixture.once(), "c", "hub", hub).router("/hook")).await;
    let signature = format!("sha256={}", hex(hmac::sign(&key, b"{}")));
    let send = |signature: &str| {
        let request = hook
            .client
            .post(&hook.url)
            .header("x-hub-signature-256", signature);
        request.header("x-delivery", "d1").body("{}").send()
    };
    assert_eq!(send(&signature).await.unwrap().status(), 200);
    assert_eq!(send(&signature[7..]).await.unwrap().status(), 401);

    let fields = Scheme::hmac(["old", "secret"], "pay-signature", Encoding::Hex)
        .fields("t", "v1")
        .id_pointer("/id");
    let hook =
        Hook::serve(Webhooks::new(&fixture.once(), "c", "pay", fields).router("/hook")).await;
    for (at, body, status) in [
        (now(), "{\"id\": \"evt_1\"}", 200),
        (now() - 1000, "{\"id\": \"evt_2\"}", 401),
        // Signed, but without an id: kept for an operator, and no use in sending it again.
        (now(), "{}", 200),
    ] {
        let tag = hex(hmac::sign(&key, format!("{at}.{body}").as_bytes()));
        let request = hook.client.post(&hook.url).body(body);
        let request = request.header("pay-signature", format!("t={at},v0=x,v1={tag}"));
        assert_eq!(request.send().await.unwrap().status(), status, "{body}");
    }
    let there = "select string_agg(source || ' ' || coalesce(failure_code, message_id), ',' order by seq) from pgonce.inbox_message";
    assert_eq!(
        fixture.world.see.text(there).await,
        "hub d1,pay evt_1,pay id_missing"
    );
}

#[tokio::test]
async fn names_that_do_not_fit_are_stored_as_poison_and_not_refused() {
    let fixture = Fixture::new().await;
    let hooks = Webhooks::new(&fixture.once(), "c", "provider", scheme()).read_with(|message| {
        let long = "x".repeat(300);
        match message.id.as_str() {
            "key" => message.key = Some(long),
            "type" => message.kind = Some("a\0b".to_owned()),
            "tenant" => message.tenant = long,
            "panic" => panic!("the test's reader panics"),
            _ => {}
        }
        Ok(())
    });
    let hook = Hook::serve(hooks.router("/hook")).await;
    let long_id = "i".repeat(300);
    for id in ["key", "type", "tenant", &long_id, "panic", "fits"] {
        let reply = hook.standard(id, "{}", now(), SECRET).await;
        assert_eq!(reply.status(), 200, "{id}");
    }
    let codes = "select string_agg(coalesce(failure_code, 'stored'), ',' order by seq) from pgonce.inbox_message";
    assert_eq!(
        fixture.world.see.text(codes).await,
        "bad_name,bad_name,bad_name,bad_name,unreadable,stored"
    );
}

#[tokio::test]
async fn without_a_database_the_sender_is_asked_to_send_again() {
    let fixture = Fixture::new().await;
    let once = fixture
        .world
        .another_at("postgres://postgres@127.0.0.1:1/nowhere", 1, |b| b);
    let hook = Hook::serve(Webhooks::new(&once, "c", "provider", scheme()).router("/hook")).await;
    let reply = hook.standard("m1", "{}", now(), SECRET).await;
    assert_eq!(reply.status(), 503);
    assert!(reply.headers().contains_key("retry-after"));
    let wait = reply.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(Duration::from_secs(wait) < Duration::from_secs(60));
}
