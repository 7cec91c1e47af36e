//! The same key with another request is a conflict, on every path.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use pgonce::Fingerprint;
use pgonce::scope::Busy;
use pgonce_http::{ApiVersion, Caller, HandlerError, Key, Policy, Print, RequestPrint, Tx};

use crate::support::{
    Gate, Reply, SCOPE, Site, TestDriver, World, effect, for_each_driver, leave_effect, made,
};

for_each_driver!(
    another_request_under_a_finished_key_is_refused,
    another_request_under_a_key_in_flight_is_refused,
    another_request_under_a_leased_key_in_flight_is_refused,
);

async fn another_request_under_a_finished_key_is_refused<D: TestDriver>(world: World<D>) {
    let site = world.usual(Policy::new(SCOPE, Caller::None)).await;
    let first = site.post("/effects", "k1", "a book").await;
    site.post("/effects", "k1", "a pen")
        .await
        .problem(422, "P4002");
    site.post("/effects?colour=red", "k1", "a book")
        .await
        .problem(422, "P4002");
    assert_eq!(site.post("/effects", "k1", "a book").await.body, first.body);
    assert_eq!(world.effects().await, 1);
}

async fn gated<D: TestDriver>(
    State(gate): State<Gate>,
    mut tx: Tx<D>,
    key: Key,
    note: String,
) -> Result<Response, HandlerError> {
    leave_effect(&mut tx, &key, &note).await?;
    gate.pass().await;
    Ok(made())
}

async fn another_request_under_a_key_in_flight_is_refused<D: TestDriver>(world: World<D>) {
    let policy = Policy::new(SCOPE, Caller::None)
        .retention(Duration::from_secs(3600))
        .busy(Busy::Wait);
    let layer = world.atomic(policy.wait_timeout(Duration::from_secs(60)));
    layer.agree().await.unwrap();
    let gate = Gate::closed();
    let router = Router::new().route("/effects", post(gated::<D>).layer(layer));
    let site = Site::open(router.with_state(gate.clone())).await;
    let (first, other, ()) = tokio::join!(
        site.post("/effects", "k1", "a book"),
        async {
            gate.until_entered(1).await;
            site.post("/effects", "k1", "a pen").await
        },
        async {
            gate.until_entered(1).await;
            world.until_somebody_waits().await;
            gate.let_pass(1);
        },
    );
    assert_eq!(first.status, 201);
    other.problem(422, "P4002");
    assert_eq!(world.effects().await, 1);
}

async fn another_request_under_a_leased_key_in_flight_is_refused<D: TestDriver>(world: World<D>) {
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let handler = post(async move || {
        at_gate.pass().await;
        made()
    });
    let router = Router::new().route(
        "/effects",
        handler.layer(world.leased(Policy::new(SCOPE, Caller::None))),
    );
    let site = Site::open(router).await;
    let (first, ()) = tokio::join!(site.post("/effects", "k1", "a book"), async {
        gate.until_entered(1).await;
        site.post("/effects", "k1", "a pen")
            .await
            .problem(422, "P4002");
        site.post("/effects", "k1", "a book")
            .await
            .problem(409, "P4029");
        gate.let_pass(1);
    });
    assert_eq!(first.status, 201);
    site.post("/effects", "k1", "a pen")
        .await
        .problem(422, "P4002");
}

#[tokio::test]
async fn what_counts_as_the_same_request_is_the_routes_choice() {
    let world: World = World::new().await;
    let site_with = async |scope: &str, print: RequestPrint| {
        world
            .usual(Policy::new(scope, Caller::None).fingerprint(print))
            .await
    };
    let json = |site: &Site, key: &str, text: &str| {
        let request = site
            .request("/effects", key)
            .header("content-type", "application/json");
        request.body(text.to_owned())
    };
    let status =
        async |request: reqwest::RequestBuilder| request.send().await.unwrap().status().as_u16();

    let bytes = site_with("bytes", RequestPrint::Bytes).await;
    assert_eq!(status(json(&bytes, "k", r#"{"a":1,"b":2}"#)).await, 201);
    assert_eq!(status(json(&bytes, "k", r#"{"b":2,"a":1}"#)).await, 422);

    let usual = site_with("usual", RequestPrint::ByContentType).await;
    assert_eq!(status(json(&usual, "k", r#"{"a":1,"b":2.50}"#)).await, 201);
    assert_eq!(
        status(json(&usual, "k", " {\"b\":2.5,\n\"a\":1}")).await,
        201
    );
    assert_eq!(status(json(&usual, "k", r#"{"a":1,"b":2.51}"#)).await, 422);
    // As doubles these two are the same number.
    assert_eq!(
        status(json(&usual, "big", r#"{"id":9007199254740992}"#)).await,
        201
    );
    assert_eq!(
        status(json(&usual, "big", r#"{"id":9007199254740993}"#)).await,
        422
    );

    let only = site_with("only", RequestPrint::Only(vec!["/order/id".into()])).await;
    assert_eq!(
        status(json(&only, "k", r#"{"order":{"id":7},"sent":1}"#)).await,
        201
    );
    assert_eq!(
        status(json(&only, "k", r#"{"order":{"id":7},"sent":2}"#)).await,
        201
    );
    assert_eq!(
        status(json(&only, "k", r#"{"order":{"id":8},"sent":1}"#)).await,
        422
    );

    // Of a body that has no such member, all counts.
    assert_eq!(status(json(&only, "none", r#"{"a":1}"#)).await, 201);
    assert_eq!(status(json(&only, "none", r#"{"a":2}"#)).await, 422);
    for pointers in [vec![], vec!["/order/id".to_owned(), "id".to_owned()]] {
        for print in [
            RequestPrint::Only(pointers.clone()),
            RequestPrint::Except(pointers),
        ] {
            let mut policy = Policy::new("s", Caller::None);
            policy.fingerprint = print;
            assert!(policy.check().is_err(), "{policy:?}");
        }
    }

    let except = site_with("except", RequestPrint::Except(vec!["/sent".into()])).await;
    assert_eq!(
        status(json(&except, "k", r#"{"id":7,"sent":1}"#)).await,
        201
    );
    assert_eq!(
        status(json(&except, "k", r#"{"id":7,"sent":2}"#)).await,
        201
    );
    assert_eq!(
        status(json(&except, "k", r#"{"id":8,"sent":1}"#)).await,
        422
    );

    let length = Print::new(|_, body| Fingerprint::of_bytes(&body.len().to_be_bytes()));
    let custom = site_with("custom", RequestPrint::Custom(length)).await;
    assert_eq!(status(json(&custom, "k", "abc")).await, 201);
    assert_eq!(status(json(&custom, "k", "xyz")).await, 201);
    assert_eq!(status(json(&custom, "k", "four")).await, 422);
}

#[tokio::test]
async fn a_form_counts_by_its_parts_and_not_by_its_boundary() {
    let world: World = World::new().await;
    let handler = post(
        async |tx: Tx<pgonce::driver::sqlx::Sqlx>, key: Key, body: axum::body::Bytes| {
            effect(tx, key, body.len().to_string()).await
        },
    );
    let layer = world.atomic(Policy::new(SCOPE, Caller::None));
    let site = Site::open(Router::new().route("/effects", handler.layer(layer))).await;
    let send = async |file: &'static [u8]| {
        let part = reqwest::multipart::Part::bytes(file).file_name("a.bin");
        // Every form gets a boundary of its own.
        let form = reqwest::multipart::Form::new()
            .text("name", "ada")
            .part("file", part);
        site.request("/effects", "k1")
            .multipart(form)
            .send()
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!(send(b"\0\x01\xff").await, 201);
    assert_eq!(send(b"\0\x01\xff").await, 201);
    assert_eq!(send(b"\0\x01\xfe").await, 422);
    assert_eq!(world.effects().await, 1);
}

#[tokio::test]
async fn all_that_the_parts_of_a_form_say_counts() {
    let world: World = World::new().await;
    let handler = post(async |_: axum::body::Bytes| made());
    let layer = world.leased(Policy::new(SCOPE, Caller::None));
    let site = Site::open(Router::new().route("/leased", handler.layer(layer))).await;
    let send = async |key: usize, boundary: &str, headers: &[u8]| {
        let [begin, end] = ["", "--"].map(|end| format!("--{boundary}{end}\r\n").into_bytes());
        let body = [&begin, headers, b"\r\n\r\n12\r\n", &*end].concat();
        let kind = format!("multipart/form-data; boundary={boundary}");
        let request = site.request("/leased", &key.to_string());
        let request = request.header("content-type", kind).body(body);
        let reply = Reply::read(request.send().await.unwrap()).await;
        (reply.status, reply.replayed())
    };
    const DATA: &[u8] = b"Content-Disposition: form-data; ";
    let pairs: [[&[u8]; 2]; 6] = [
        [
            b"name=a; filename*=UTF-8''alice.pdf",
            b"name=a; filename*=UTF-8''bob.pdf",
        ],
        [
            b"name=a; filename=\"x\"; filename*=UTF-8''a",
            b"name=a; filename=\"x\"; filename*=UTF-8''b",
        ],
        [b"Name=\"amount\"", b"Name=\"fee\""],
        [b"name=\"h\xe9\"", b"name=\"h\xe8\""],
        [
            b"name=a\r\nContent-Type: text/plain; a",
            b"name=a\r\nContent-Type: image/png; b",
        ],
        [
            b"name=a\r\nX-To: a\r\nX-To: c",
            b"name=a\r\nX-To: b\r\nX-To: c",
        ],
    ];
    for (key, [one, other]) in pairs.into_iter().enumerate() {
        let (one, other) = ([DATA, one].concat(), [DATA, other].concat());
        assert_eq!(send(key, "first", &one).await, (201, false), "{key}");
        assert_eq!(send(key, "second", &one).await, (201, true), "{key}");
        assert_eq!(send(key, "first", &other).await, (422, false), "{key}");
    }
}

#[tokio::test]
async fn another_version_of_the_api_is_another_request() {
    let world: World = World::new().await;
    let version = ApiVersion::Header("api-version".parse().unwrap());
    let site = world
        .usual(Policy::new(SCOPE, Caller::None).version(version))
        .await;
    let send = async |version: &str| {
        let request = site
            .request("/effects", "k1")
            .header("api-version", version);
        request
            .body("a book")
            .send()
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!(send("1").await, 201);
    assert_eq!(send("2").await, 422);
    assert_eq!(send("1").await, 201);
    assert_eq!(world.effects().await, 1);
}
