//! `pgonce webhooks`: what is signed is stored once, in every scheme, and given to a consumer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fixture::Fixture;
use crate::relay::{Running, get};

const FILE: &str = r#"
listen.address = "127.0.0.1:0"
log.format = "json"

[[webhooks]]
path = "/standard"
consumer = "c"
source = "standard"
scheme = "standard"
secret_env = "STANDARD_SECRET"
key_pointer = "/account"
type_pointer = "/type"

[[webhooks]]
path = "/github"
consumer = "c"
source = "github"
scheme = "github"
secret_env = "PLAIN_SECRET"

[[webhooks]]
path = "/stripe"
consumer = "c"
source = "stripe"
scheme = "stripe"
secret_env = "PLAIN_SECRET"

[[webhooks]]
path = "/own"
consumer = "c"
source = "own"
scheme = "hmac"
secret_env = "PLAIN_SECRET"
header = "x-own-signature"
encoding = "base64"
time_header = "x-own-time"
id_header = "x-own-id"
"#;

/// Long enough for a loaded machine.
const DEADLINE: Duration = Duration::from_secs(60);

const BODY: &str = r#"{"id": "m1", "account": "ada", "type": "paid", "amount": 5}"#;
const SECRET: &[u8] = b"secret-of-the-test";

fn sign(content: &str) -> hmac::Tag {
    hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, SECRET),
        content.as_bytes(),
    )
}

fn hex(tag: &hmac::Tag) -> String {
    tag.as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The headers of a body that was signed at this time, as each sender writes them.
fn headers(scheme: &str, time: u64, body: &str) -> Vec<(&'static str, String)> {
    let timed = format!("{time}.{body}");
    match scheme {
        "standard" => {
            let tag = sign(&format!("m1.{timed}"));
            let signature = format!("v1,{}", STANDARD.encode(tag));
            vec![
                ("webhook-id", "m1".to_owned()),
                ("webhook-timestamp", time.to_string()),
                ("webhook-signature", signature),
            ]
        }
        "github" => vec![
            ("x-github-delivery", "m1".to_owned()),
            (
                "x-hub-signature-256",
                format!("sha256={}", hex(&sign(body))),
            ),
        ],
        "stripe" => vec![(
            "stripe-signature",
            format!("t={time},v1={}", hex(&sign(&timed))),
        )],
        _ => vec![
            ("x-own-id", "m1".to_owned()),
            ("x-own-time", time.to_string()),
            ("x-own-signature", STANDARD.encode(sign(&timed))),
        ],
    }
}

async fn post(place: &str, scheme: &str, headers: Vec<(&str, String)>, body: &str) -> u16 {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = client
        .post(format!("http://{place}/{scheme}"))
        .body(body.to_owned());
    for (name, value) in headers {
        request = request.header(name, value);
    }
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn each_scheme_is_verified_stored_once_and_applied_by_a_consumer() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "create table received (source text, id text, key text);
             create function apply(p_message jsonb) returns void language sql as
             'insert into received values (p_message ->> ''source'', p_message ->> ''id'', p_message ->> ''key'')'",
        )
        .await;
    let file = std::env::temp_dir().join(format!("webhooks-{}.toml", std::process::id()));
    std::fs::write(&file, FILE).unwrap();
    let secrets = [
        (
            "STANDARD_SECRET",
            format!("whsec_b2xk whsec_{}", STANDARD.encode(SECRET)),
        ),
        ("PLAIN_SECRET", String::from_utf8(SECRET.to_vec()).unwrap()),
    ];
    let args = [file.to_str().unwrap()];
    let mut receiver = Running::with(&fixture, "webhooks", &args, &secrets);
    let place = receiver.admin().await;
    assert_eq!(get(&place, "/readyz").await.0, 200);
    let schemes = ["standard", "github", "stripe", "own"];
    for scheme in schemes {
        for _ in 0..2 {
            let signed = headers(scheme, now(), BODY);
            assert_eq!(post(&place, scheme, signed, BODY).await, 200, "{scheme}");
        }
        // Another body under the same signature, an old time, another body under the same id.
        let signed = headers(scheme, now(), BODY);
        assert_eq!(post(&place, scheme, signed, "{}").await, 401, "{scheme}");
        let changed = BODY.replace('5', "6");
        let signed = headers(scheme, now(), &changed);
        assert_eq!(
            post(&place, scheme, signed, &changed).await,
            422,
            "{scheme}"
        );
        if scheme != "github" {
            let old = headers(scheme, now() - 3600, BODY);
            assert_eq!(post(&place, scheme, old, BODY).await, 401, "{scheme}");
        }
        assert_eq!(
            post(&place, scheme, Vec::new(), BODY).await,
            401,
            "{scheme}"
        );
    }
    std::fs::remove_file(&file).unwrap();
    let args = ["--consumer", "c", "--source", "stored:", "--sql", "apply"];
    let consumer = Running::of(&fixture, "consume", &args);
    let count = "select count(*) from received";
    let all = async || {
        fixture
            .client
            .query_one(count, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            >= 4
    };
    let waited = pgonce_testkit::wait_until("all to be applied", DEADLINE, all).await;
    waited.unwrap_or_else(|error| panic!("{error}: {}", consumer.log()));
    let once =
        "select string_agg(concat_ws(' ', source, id, key), ',' order by source) from received";
    let seen: String = fixture.client.query_one(once, &[]).await.unwrap().get(0);
    assert_eq!(seen, "github m1,own m1,standard m1 ada,stripe m1");
    receiver.signal(Signal::TERM);
    assert_eq!(receiver.end().await, 0, "{}", receiver.log());
}

#[tokio::test]
async fn flags_are_enough_for_one_sender_and_a_missing_secret_is_said() {
    let fixture = Fixture::installed().await;
    let args = [
        "--listen",
        "127.0.0.1:0",
        "--path",
        "/standard",
        "--consumer",
        "c",
        "--source",
        "s",
        "--log-format",
        "json",
    ];
    let secret = [(
        "PGONCE_WEBHOOK_SECRET",
        format!("whsec_{}", STANDARD.encode(SECRET)),
    )];
    let receiver = Running::with(&fixture, "webhooks", &args, &secret);
    let place = receiver.admin().await;
    assert_eq!(
        post(&place, "standard", headers("standard", now(), BODY), BODY).await,
        200
    );
    let stored = "select count(*) from pgonce.inbox_message where consumer = 'c' and source = 's'";
    assert_eq!(
        fixture
            .client
            .query_one(stored, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        1
    );
    let run = fixture.run(&["webhooks", "--consumer", "c", "--source", "s"]);
    assert!(
        run.code == 2 && run.err.contains("PGONCE_WEBHOOK_SECRET"),
        "{run:?}"
    );
    let run = fixture.run(&[
        "webhooks",
        "--consumer",
        "c",
        "--source",
        "s",
        "--path",
        "x",
    ]);
    assert!(run.code == 2 && run.err.contains("no path"), "{run:?}");
}

/// Begins a request, and never sends all of its body.
async fn unfinished(place: &str) -> TcpStream {
    let mut stream = TcpStream::connect(place).await.unwrap();
    let head = "POST /standard HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn receiver(fixture: &Fixture, listen: &str) -> (Running, String) {
    let file = std::env::temp_dir().join(format!("webhooks-{}.toml", uuid::Uuid::new_v4()));
    std::fs::write(
        &file,
        FILE.replace("log.format", &format!("{listen}\nlog.format")),
    )
    .unwrap();
    let secrets = [
        (
            "STANDARD_SECRET",
            format!("whsec_{}", STANDARD.encode(SECRET)),
        ),
        ("PLAIN_SECRET", "secret".to_owned()),
    ];
    let receiver = Running::with(fixture, "webhooks", &[file.to_str().unwrap()], &secrets);
    let place = receiver.admin().await;
    std::fs::remove_file(&file).unwrap();
    (receiver, place)
}

#[tokio::test]
async fn a_sender_that_never_finishes_holds_neither_its_place_nor_the_end() {
    let fixture = Fixture::installed().await;
    let short = "listen.body_timeout = \"100ms\"\nlisten.max_connections = 1";
    let (mut patient, place) = receiver(&fixture, short).await;
    // The only place is free again when its time is over: the second one is answered.
    for _ in 0..2 {
        let mut answer = [0; 12];
        // What it did not read of the request may reset the connection before its answer is read.
        while let Err(error) = unfinished(&place).await.read_exact(&mut answer).await {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        assert_eq!(&answer, b"HTTP/1.1 408");
    }
    patient.signal(Signal::TERM);
    assert_eq!(patient.end().await, 0, "{}", patient.log());

    let (mut drained, place) = receiver(&fixture, "listen.drain_timeout = \"100ms\"").await;
    let _open = unfinished(&place).await;
    get(&place, "/healthz").await;
    drained.signal(Signal::TERM);
    assert_eq!(drained.end().await, 1, "{}", drained.log());

    let (mut asked_twice, place) = receiver(&fixture, "listen.drain_timeout = \"1h\"").await;
    let _open = unfinished(&place).await;
    get(&place, "/healthz").await;
    asked_twice.signal(Signal::TERM);
    let stopping = async || asked_twice.log().contains("asked to stop");
    pgonce_testkit::wait_until("the first signal", DEADLINE, stopping)
        .await
        .unwrap();
    asked_twice.signal(Signal::TERM);
    assert_eq!(asked_twice.end().await, 1, "{}", asked_twice.log());
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}
