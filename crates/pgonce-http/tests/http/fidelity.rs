//! A replay is the answer once more: status, headers that describe it, and every byte.

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::{HeaderName, HeaderValue, StatusCode};
use pgonce_http::{Caller, HandlerError, Key, Oversize, Policy, ReplayHeaders, Tx};
use reqwest::Client;

use crate::support::{SCOPE, Site, TestDriver, World, chunks, for_each_driver, leave_effect};

for_each_driver!(every_answer_is_replayed_byte_by_byte);

type Answer = (
    &'static str,
    u16,
    Vec<(&'static str, &'static [u8])>,
    Vec<u8>,
);

/// Answers of all kinds by name: status, headers, body.
fn answers() -> Vec<Answer> {
    let every_byte: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    vec![
        (
            "created",
            201,
            vec![
                ("location", b"/things/7"),
                ("etag", b"\"v1\""),
                ("content-type", b"application/json"),
            ],
            br#"{"id":7}"#.to_vec(),
        ),
        ("empty", 204, vec![], vec![]),
        (
            "empty-ok",
            200,
            vec![("content-type", b"text/plain")],
            vec![],
        ),
        (
            "null",
            200,
            vec![("content-type", b"application/json")],
            b"null".to_vec(),
        ),
        ("zero", 200, vec![], b"0".to_vec()),
        (
            "nul",
            200,
            vec![("content-type", b"text/plain")],
            b"a\0b".to_vec(),
        ),
        (
            "binary",
            200,
            vec![("content-type", b"application/octet-stream")],
            every_byte,
        ),
        (
            "gzip",
            200,
            vec![("content-encoding", b"gzip"), ("vary", b"accept-encoding")],
            vec![
                0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ],
        ),
        (
            "unicode",
            200,
            vec![("content-type", b"text/plain; charset=utf-8")],
            "ü 漢 \u{1F600} \u{FEFF} \r\n\t\u{7f}".as_bytes().to_vec(),
        ),
        (
            "repeated",
            200,
            vec![
                ("link", b"</a>; rel=prev"),
                ("link", b"</b>; rel=next"),
                ("link", b"</a>; rel=prev"),
            ],
            b"x".to_vec(),
        ),
        (
            "latin",
            200,
            vec![("content-disposition", b"attachment; filename=\xe4.txt")],
            b"x".to_vec(),
        ),
        ("see-other", 303, vec![("location", b"/things/8")], vec![]),
        ("half-a-pair", 200, vec![], br#""\ud800""#.to_vec()),
    ]
}

async fn answer(Path(name): Path<String>) -> Response {
    let (_, status, headers, body) = answers().into_iter().find(|(n, ..)| *n == name).unwrap();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        let value = HeaderValue::from_bytes(value).unwrap();
        response
            .headers_mut()
            .append(HeaderName::from_static(name), value);
    }
    response
}

async fn every_answer_is_replayed_byte_by_byte<D: TestDriver>(world: World<D>) {
    let in_tx = async |_: Tx<D>, path: Path<String>| answer(path).await;
    let router = Router::new()
        .route(
            "/atomic/{name}",
            post(in_tx).layer(world.atomic(Policy::new("atomic", Caller::None))),
        )
        .route(
            "/leased/{name}",
            post(answer).layer(world.leased(Policy::new("leased", Caller::None))),
        );
    let mut site = Site::open(router).await;
    site.client = Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    for mode in ["atomic", "leased"] {
        for (name, status, headers, body) in answers() {
            let path = format!("/{mode}/{name}");
            let first = site.post(&path, name, "").await;
            let again = site.post(&path, name, "").await;
            assert!(again.replayed() && !first.replayed(), "{path}");
            for reply in [&first, &again] {
                assert_eq!(reply.status, status, "{path}");
                assert_eq!(reply.body, body, "{path}");
            }
            let mut names: Vec<_> = headers.iter().map(|(name, _)| *name).collect();
            names.dedup();
            for header in names {
                let sent: Vec<_> = headers
                    .iter()
                    .filter(|(n, _)| *n == header)
                    .map(|(_, v)| *v)
                    .collect();
                let got: Vec<_> = again
                    .headers
                    .get_all(header)
                    .iter()
                    .map(|v| v.as_bytes())
                    .collect();
                assert_eq!(got, sent, "{path} {header}");
            }
            // Nothing else comes or goes, but for what is said about the replay itself.
            let mut left = again.headers.clone();
            left.remove("idempotent-replayed");
            let mut had = first.headers.clone();
            left.remove("date");
            had.remove("date");
            assert_eq!(left, had, "{path}");
        }
    }
}

async fn talkative() -> Response {
    let mut response = "x".into_response();
    for (name, value) in [
        ("set-cookie", "session=1"),
        ("set-cookie", "other=2"),
        ("date", "Thu, 01 Jan 1970 00:00:00 GMT"),
        ("age", "7"),
        ("ratelimit", "limit=10"),
        ("ratelimit-policy", "10;w=1"),
        ("x-ratelimit-remaining", "3"),
        ("x-rate-limit-limit", "3"),
        ("connection", "x-hop"),
        ("x-hop", "for the next one only"),
        ("keep-alive", "timeout=5"),
        ("proxy-authenticate", "Basic"),
        ("idempotent-replayed", "true"),
        ("x-order", "7"),
        ("x-secret", "hidden"),
        ("etag", "\"v1\""),
    ] {
        let mut value = HeaderValue::from_static(value);
        value.set_sensitive(name == "x-secret");
        response
            .headers_mut()
            .append(HeaderName::from_static(name), value);
    }
    response
}

#[tokio::test]
async fn what_belongs_to_one_exchange_is_never_replayed_and_the_rest_by_choice() {
    let world: World = World::new().await;
    let route = |policy| post(talkative).layer(world.leased(policy));
    let more = ReplayHeaders::usual_and([
        HeaderName::from_static("x-order"),
        HeaderName::from_static("set-cookie"),
    ]);
    let router = Router::new()
        .route("/usual", route(Policy::new("usual", Caller::None)))
        .route(
            "/more",
            route(Policy::new("more", Caller::None).replay_headers(more)),
        )
        .route(
            "/all",
            route(Policy::new("all", Caller::None).replay_headers(ReplayHeaders::All)),
        );
    let site = Site::open(router).await;
    for (path, has_order) in [("/usual", false), ("/more", true), ("/all", true)] {
        let first = site.post(path, "k1", "").await;
        // The first answer is the handler's own, but cannot pose as a replay.
        assert!(!first.replayed());
        assert_eq!(first.headers.get_all("set-cookie").iter().count(), 2);
        let again = site.post(path, "k1", "").await;
        assert!(again.replayed());
        assert_eq!(again.headers["etag"], "\"v1\"");
        assert_eq!(again.headers.contains_key("x-order"), has_order, "{path}");
        for name in [
            "set-cookie",
            "age",
            "ratelimit",
            "ratelimit-policy",
            "x-ratelimit-remaining",
            "x-rate-limit-limit",
            "x-hop",
            "keep-alive",
            "proxy-authenticate",
            "x-secret",
        ] {
            assert!(!again.headers.contains_key(name), "{path} replays {name}");
        }
        assert_ne!(
            again.headers.get("date"),
            Some(&HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
        );
    }
}

async fn big(
    mut tx: Tx<pgonce::driver::sqlx::Sqlx>,
) -> Result<Response, pgonce_http::HandlerError> {
    sqlx::query("insert into effects values ('', '')")
        .execute(tx.conn())
        .await?;
    Ok(Body::from_stream(chunks(&["12345", "67890", "abc"])).into_response())
}

async fn events() -> Response {
    let mut response = Response::new(Body::from_stream(endless()));
    let kind = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert("content-type", kind);
    response
}

/// Says one thing and stays silent.
fn endless() -> impl futures_util::Stream<Item = Result<&'static str, std::io::Error>> + Send {
    use futures_util::StreamExt as _;
    futures_util::stream::once(async { Ok("data: 1\n\n") }).chain(futures_util::stream::pending())
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_refused_whole_or_passed_whole() {
    let world: World = World::new().await;
    let small = |scope: &str| Policy::new(scope, Caller::None).max_response(12);
    let pass = |scope: &str| small(scope).oversize(Oversize::PassUnkept);
    let stream = async || Body::from_stream(chunks(&["12345", "67890", "abc"]));
    let refusal = async || (StatusCode::NOT_FOUND, "1234567890abc");
    let refused = async |mut tx: Tx<pgonce::driver::sqlx::Sqlx>, key: Key| {
        leave_effect(&mut tx, &key, "").await?;
        Ok::<_, HandlerError>((StatusCode::NOT_FOUND, "1234567890abc"))
    };
    let router = Router::new()
        .route("/atomic/refuse", post(big).layer(world.atomic(small("a"))))
        .route("/atomic/pass", post(big).layer(world.atomic(pass("b"))))
        .route(
            "/leased/refuse",
            post(stream).layer(world.leased(small("c"))),
        )
        .route("/leased/pass", post(stream).layer(world.leased(pass("d"))))
        .route("/atomic/no", post(refused).layer(world.atomic(pass("f"))))
        .route("/leased/no", post(refusal).layer(world.leased(pass("g"))))
        .route(
            "/fits",
            post(big).layer(world.atomic(Policy::new("e", Caller::None).max_response(13))),
        );
    let site = Site::open(router).await;

    // Atomic and refused: nothing happened, and the key is free.
    site.post("/atomic/refuse", "k1", "")
        .await
        .problem(500, "response_too_large");
    assert_eq!(world.effects().await, 0);
    assert!(!site.post("/atomic/refuse", "k1", "").await.replayed());

    // Leased and refused: it happened, and stays so.
    site.post("/leased/refuse", "k1", "")
        .await
        .problem(500, "response_too_large");
    assert!(site.post("/leased/refuse", "k1", "").await.replayed());

    for path in ["/atomic/pass", "/leased/pass"] {
        let first = site.post(path, "k1", "").await;
        assert_eq!((first.status, &*first.body), (200, &b"1234567890abc"[..]));
        let again = site.post(path, "k1", "").await;
        assert!(again.replayed());
        let document = again.problem(410, "P4031");
        assert_eq!(
            (&document["reason"], &document["original_status"]),
            (&"answer_not_kept".into(), &200.into())
        );
    }
    for path in ["/atomic/no", "/leased/no"] {
        assert_eq!(site.post(path, "k1", "").await.status, 404);
        let again = site.post(path, "k1", "").await;
        assert!(again.replayed());
        let document = again.problem(422, "P4030");
        assert_eq!(
            (&document["reason"], &document["original_status"]),
            (&"http_404".into(), &404.into())
        );
    }
    assert_eq!(site.post("/fits", "k1", "").await.body, b"1234567890abc");
    assert!(site.post("/fits", "k1", "").await.replayed());
    assert_eq!(world.effects().await, 2);
}

/// What `max_response` lets pass may still be more than the contract of its scope allows.
#[tokio::test]
async fn an_answer_above_the_contracts_limit_is_rolled_back_or_recorded_without_its_body() {
    let world: World = World::new().await;
    let policy = |scope: &str| Policy::new(scope, Caller::None);
    world
        .run_sql(
            "select pgonce.define_scope('a', '1 day', p_max_answer => 50), \
             pgonce.define_scope('b', '1 day', p_max_answer => 100), \
             pgonce.define_scope('c', '1 day', p_max_keys => 1)",
        )
        .await;
    let stream = async || "x".repeat(100);
    let router = Router::new()
        .route("/atomic", post(big).layer(world.atomic(policy("a"))))
        .route("/leased", post(stream).layer(world.leased(policy("b"))))
        .route("/few", post(big).layer(world.atomic(policy("c"))));
    let site = Site::open(router).await;
    site.post("/atomic", "k1", "")
        .await
        .problem(500, "response_too_large");
    assert_eq!(world.effects().await, 0);
    let first = site.post("/leased", "k1", "").await;
    assert_eq!((first.status, first.body.len()), (200, 100));
    let document = site.post("/leased", "k1", "").await.problem(410, "P4031");
    assert_eq!(document["original_status"], 200);
    assert_eq!(site.post("/few", "k1", "").await.status, 200);
    site.post("/few", "k2", "").await.problem(429, "P4044");
    assert!(site.post("/few", "k1", "").await.replayed());
    assert_eq!(world.effects().await, 1);
}

#[tokio::test]
async fn a_stream_of_events_is_passed_on_at_once_where_the_policy_says_so() {
    let world: World = World::new().await;
    let layer = world.leased(Policy::new(SCOPE, Caller::None).oversize(Oversize::PassUnkept));
    let site = Site::open(Router::new().route("/events", post(events).layer(layer))).await;
    let mut first = site.request("/events", "k1").send().await.unwrap();
    assert_eq!(first.chunk().await.unwrap().unwrap(), "data: 1\n\n");
    site.post("/events", "k1", "").await.problem(410, "P4031");
}
