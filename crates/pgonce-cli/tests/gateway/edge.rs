//! The gateway at a real edge: forged headers, ambiguous requests, many sockets, a changed file.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, header};
use http_body_util::BodyExt as _;
use pgonce_testkit::wait_until;
use rustix::process::Signal;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{Fixture, Setup, TIMEOUT, get};
use crate::passing::raw;
use crate::upstream::Upstream;

#[tokio::test]
async fn a_service_in_any_language_says_what_becomes_of_its_response() {
    let fixture = Fixture::new().await;
    let upstream = Upstream::answering(|seen, number| {
        Response::builder()
            .status(500)
            .header(
                "pgonce-disposition",
                seen.header("idempotency-key").unwrap().to_owned(),
            )
            .header("pgonce-keep-for", "60")
            .body(Body::from(number.to_string()))
            .unwrap()
    })
    .await;
    let gateway = fixture
        .gateway(&Setup::default().in_front_of(&upstream.url))
        .await;
    for (word, stays) in [
        ("keep", true),
        ("refuse", true),
        ("retry", false),
        ("forget", false),
    ] {
        let body = format!("\"{word}\"");
        let key = [("idempotency-key", word)];
        let first = gateway.post("/orders", &key, &body).await;
        let again = gateway.post("/orders", &key, &body).await;
        assert_eq!(
            (again.is_replay(), again.body == first.body),
            (stays, stays),
            "{word}"
        );
        for answer in [&first, &again] {
            let leaked = |name: &&str| answer.headers.contains_key(*name);
            let names = ["pgonce-disposition", "pgonce-keep-for"];
            assert!(!names.iter().any(leaked), "{word}");
        }
    }
}

#[tokio::test]
async fn no_client_hides_or_imitates_a_trusted_header_on_any_route() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        once: "principal = { header = \"X-User-Id\" }",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    for path in ["/orders", "/else"] {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\nx-user-id: ada\r\n\
             connection: X-User-Id, Idempotency-Key\r\nX_User_Id: bob\r\nPgonce_Fence: 9\r\n\
             Idempotency_Key: other\r\ncontent-length: 0\r\n\r\n"
        );
        let (head, _) = raw(&gateway, request.as_bytes()).await;
        assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
    }
    for seen in upstream.seen() {
        assert_eq!(seen.header("x-user-id"), Some("ada"));
        assert_eq!(seen.header("idempotency-key"), Some("k"));
        for forged in ["x_user_id", "pgonce_fence", "idempotency_key"] {
            assert_eq!(seen.header(forged), None, "{forged}");
        }
    }
    assert_eq!(upstream.seen().len(), 2);
}

#[tokio::test]
async fn a_request_without_one_host_is_refused() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let gateway = fixture
        .gateway(&Setup::default().in_front_of(&upstream.url))
        .await;
    for hosts in [
        "",
        "host: a\r\nhost: b\r\n",
        "host: a\r\nhost: a\r\n",
        "host: a b\r\n",
        "host: user@a\r\n",
    ] {
        let request = format!("GET /x HTTP/1.1\r\n{hosts}\r\n");
        let (head, _) = raw(&gateway, request.as_bytes()).await;
        assert!(head.starts_with("HTTP/1.1 400 "), "{hosts:?}: {head}");
    }
    assert!(upstream.seen().is_empty());
    let (head, _) = raw(&gateway, b"GET /x HTTP/1.0\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.0 201 "), "{head}");
}

#[tokio::test]
async fn a_keyed_request_is_protected_refused_or_reported_and_never_passes_in_silence() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    for (listen, status, calls) in [
        ("keyed_on_pass = \"refuse\"", 400, 0),
        ("keyed_on_pass = \"refuse\"\nmatching = \"loose\"", 201, 1),
        ("", 201, 2),
    ] {
        let setup = Setup {
            listen,
            ..Setup::default()
        };
        let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
        let before = upstream.seen().len();
        for path in ["/Orders", "/orders/"] {
            let key = [("idempotency-key", listen.get(..9).unwrap_or("warned"))];
            let path = if calls == 1 { "/Orders/" } else { path };
            let answer = gateway.post(path, &key, "{}").await;
            assert_eq!(answer.status, status, "{listen}: {answer:?}");
        }
        assert_eq!(upstream.seen().len(), before + calls, "{listen}");
        let warned = gateway.log().contains("does not protect it");
        assert_eq!(warned, calls != 1, "{listen}");
    }
}

#[tokio::test]
async fn no_spelling_of_a_path_is_a_way_around_its_route() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        listen: "matching = \"loose\"",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let post = async |path: &str| {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nidempotency-key: {}\r\ncontent-length: 0\r\n\r\n",
            path.replace('/', "-")
        );
        raw(&gateway, request.as_bytes()).await.0
    };
    for (number, path) in ["/orders/2024%2F17/pay", "/orders%2F17%2Fpay"]
        .iter()
        .enumerate()
    {
        for replayed in [false, true] {
            let head = post(path).await;
            assert!(head.starts_with("HTTP/1.1 201 "), "{path}: {head}");
            assert_eq!(head.contains("idempotent-replayed"), replayed, "{path}");
        }
        assert_eq!(upstream.seen().len(), number + 1, "{path}");
    }
    let before = upstream.seen().len();
    for path in [
        "/x/../orders",
        "/./orders",
        "/x/%2e%2e/orders",
        "/x%2f..%2forders",
    ] {
        let head = post(path).await;
        assert!(head.starts_with("HTTP/1.1 400 "), "{path}: {head}");
    }
    assert_eq!(upstream.seen().len(), before);
}

#[tokio::test]
async fn a_path_of_two_readings_takes_the_route_that_is_protected() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        listen: "matching = \"loose\"",
        ..Setup::default()
    };
    let route = |path: &str, once: &str| {
        format!("[[routes]]\npath = \"{path}\"\nmethods = [\"POST\"]\nupstream = \"u\"\n{once}\n")
    };
    let once = "[routes.once]\nscope = \"orders.create\"\nprincipal = \"none\"";
    let config = setup.in_front_of(&upstream.url)
        + &route("/files/{*path}", once)
        + &route("/files/{name}/meta", "")
        + &route("/files/{name}/tags", once);
    let gateway = fixture.gateway(&config).await;
    for (path, status, calls) in [
        ("/files/b/meta", 201, 2),
        ("/files/a%2Fmeta", 201, 1),
        ("/files/c/meta%2F", 201, 1),
        ("/files/a%2Ftags", 400, 0),
        ("/files%2Fa%2Ftags", 201, 1),
    ] {
        let before = upstream.seen().len();
        for _ in 0..2 {
            let key = path.replace('/', "-");
            let answer = gateway.post(path, &[("idempotency-key", &key)], "").await;
            assert_eq!(answer.status, status, "{path}: {answer:?}");
        }
        assert_eq!(upstream.seen().len() - before, calls, "{path}");
    }
}

#[tokio::test]
async fn trailers_cross_the_gateway_both_ways_and_are_replayed() {
    // Sends the trailers of the request back as its own.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = axum::Router::new().fallback(async |body: Body| {
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap();
        // A stream: a body of a known length is sent without trailers.
        let pieces = futures_util::stream::iter([Ok::<_, std::io::Error>(body.to_bytes())]);
        let body = Body::from_stream(pieces).with_trailers(async move { Some(Ok(trailers)) });
        let mut response = Response::new(Body::new(body));
        let names = HeaderValue::from_static("x-sum, x-more");
        response.headers_mut().insert(header::TRAILER, names);
        response
    });
    tokio::spawn(async move { axum::serve(listener, app).await });
    let fixture = Fixture::new().await;
    let gateway = fixture.gateway(&Setup::default().in_front_of(&url)).await;
    for replayed in [false, true] {
        let request = b"POST /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\nconnection: close\r\nte: trailers\r\n\
            transfer-encoding: chunked\r\ntrailer: x-sum, x-more\r\n\r\n3\r\nabc\r\n0\r\nx-sum: 7\r\nx-more: 8\r\n\r\n";
        let (head, mut rest) = raw(&gateway, request).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(head.contains("idempotent-replayed"), replayed, "{head}");
        let mut body = String::new();
        rest.read_to_string(&mut body).await.unwrap();
        assert_eq!(
            body, "3\r\nabc\r\n0\r\nx-sum: 7\r\nx-more: 8\r\n\r\n",
            "{head}"
        );
    }
}

#[tokio::test]
async fn what_the_upstream_trusts_cannot_come_as_a_trailer() {
    let (seen, mut trailers) = tokio::sync::mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = axum::Router::new().fallback(async move |body: Body| {
        let body = body.collect().await.unwrap();
        let names = body.trailers().into_iter().flat_map(|map| map.keys());
        let names: Vec<String> = names.map(ToString::to_string).collect();
        seen.send(names).unwrap();
    });
    tokio::spawn(async move { axum::serve(listener, app).await });
    let fixture = Fixture::new().await;
    let setup = Setup {
        once: "principal.header = \"X-User-Id\"",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&url)).await;
    let names =
        "x-sum, pgonce-fence, x-user-id, x_user_id, x-forwarded-for, idempotency-key, cookie";
    let lines: String = names
        .split(", ")
        .map(|name| format!("{name}: 7\r\n"))
        .collect();
    // One that happens once, and one that passes.
    for path in ["/orders", "/x"] {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\nx-user-id: ann\r\nte: trailers\r\n\
             transfer-encoding: chunked\r\ntrailer: {names}\r\n\r\n3\r\nabc\r\n0\r\n{lines}\r\n"
        );
        let (head, _) = raw(&gateway, request.as_bytes()).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
        assert_eq!(trailers.recv().await.unwrap(), ["x-sum"], "{path}");
    }
}

#[tokio::test]
async fn one_peer_cannot_take_all_connections() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        listen: "max_connections = 8\nmax_connections_per_peer = 2",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let request = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n";
    let (_, first) = raw(&gateway, request).await;
    let (_, second) = raw(&gateway, request).await;
    let mut third = TcpStream::connect(gateway.address()).await.unwrap();
    let closed = tokio::time::timeout(TIMEOUT, third.read(&mut [0; 1])).await;
    assert!(matches!(closed.unwrap(), Ok(0) | Err(_)), "it was served");
    drop((first, second));
    wait_until("room for the peer", TIMEOUT, || async {
        let served = crate::fixture::client().get(format!("{}/x", gateway.url));
        served
            .send()
            .await
            .is_ok_and(|answer| answer.status() == 201)
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_hangup_reloads_the_file_and_a_wrong_one_changes_nothing() {
    let (old, new, fixture) = (
        Upstream::start().await,
        Upstream::start().await,
        Fixture::new().await,
    );
    let gateway = fixture
        .gateway(&Setup::default().in_front_of(&old.url))
        .await;
    let first = gateway.order("k").await;
    std::fs::write(gateway.file(), "[listen]\nnonsense = 1").unwrap();
    gateway.signal(Signal::HUP);
    wait_until("the refusal", TIMEOUT, || async {
        gateway.log().contains("not reloaded")
    })
    .await
    .unwrap();
    assert_eq!(gateway.get("/x").await.status, 201);
    // The database stays the one of the start, whatever the file says of it.
    let moved = Setup {
        database: "schema = \"elsewhere\"",
        ..Setup::default()
    };
    std::fs::write(gateway.file(), moved.in_front_of(&new.url)).unwrap();
    gateway.signal(Signal::HUP);
    wait_until("the reload", TIMEOUT, || async {
        gateway.log().contains("\"reloaded\"")
    })
    .await
    .unwrap();
    assert_eq!(gateway.get("/x").await.status, 201);
    assert_eq!((old.seen().len(), new.seen().len()), (2, 1));
    // What was done before is done.
    let again = gateway.order("k").await;
    assert_eq!((again.is_replay(), again.body), (true, first.body));
    let metrics = get(&format!("{}/metrics", gateway.admin)).await;
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    let counted = |outcome: &str| {
        format!(
            "pgonce_http_requests_total{{scope=\"orders.create\",operation=\"POST /orders\",outcome=\"{outcome}\"}} 1\n"
        )
    };
    assert!(
        text.contains(&counted("done")) && text.contains(&counted("replayed")),
        "{text}"
    );
}

#[tokio::test]
async fn replays_and_the_gateways_own_errors_can_be_read_by_pages() {
    let fixture = Fixture::new().await;
    let upstream = Upstream::answering(|_, _| {
        Response::builder()
            .status(201)
            .header("access-control-allow-origin", "https://first.example")
            .header("x-content-type-options", "nosniff")
            .body(Body::from("made"))
            .unwrap()
    })
    .await;
    let config = Setup::default().in_front_of(&upstream.url)
        + "[responses]\nheaders = { \"Strict-Transport-Security\" = \"max-age=60\" }\n\
           cors_origins = [\"https://shop.example\"]\n";
    let gateway = fixture.gateway(&config).await;
    let origin = ("origin", "https://shop.example");
    gateway.order("k").await;
    let replay = gateway
        .post(
            "/orders",
            &[("idempotency-key", "k"), origin],
            r#"{"item":"book"}"#,
        )
        .await;
    assert!(replay.is_replay());
    assert_eq!(replay.headers["x-content-type-options"], "nosniff");
    let refused = gateway.post("/orders", &[origin], "{}").await;
    assert_eq!(refused.status, 400);
    for answer in [&replay, &refused] {
        assert_eq!(answer.headers["access-control-allow-origin"], origin.1);
        assert_eq!(answer.headers["strict-transport-security"], "max-age=60");
    }
    let stranger = [("origin", "https://evil.example")];
    let refused = gateway.post("/orders", &stranger, "{}").await;
    assert!(!refused.headers.contains_key("access-control-allow-origin"));
}

#[tokio::test]
async fn an_operator_finds_a_request_by_the_clients_own_key() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        once: "principal = { header = \"X-User-Id\" }",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let show = async |key: &str| fixture.run(&["show", "orders.create", key]).await;
    assert!(show("k-1").await.err.contains("it has not happened"));
    for (user, key) in [
        ("ada", "k-1"),
        ("ada", "k-10"),
        ("ada", "k-2"),
        ("bob", "k-2"),
    ] {
        let headers = [("x-user-id", user), ("idempotency-key", key)];
        assert_eq!(gateway.post("/orders", &headers, "{}").await.status, 201);
    }
    let found = show("k-1").await;
    assert!(found.code == 0 && found.out.contains("k-1#"), "{found:?}");
    let several = show("k-2").await;
    assert!(several.err.matches("k-2#").count() == 2, "{several:?}");
    assert!(!several.err.contains("has not happened"), "{several:?}");
}
