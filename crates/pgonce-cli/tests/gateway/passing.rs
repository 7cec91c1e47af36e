//! Routes without a policy pass untouched, in both directions.

use axum::body::Body;
use axum::response::Response;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{Answer, Fixture, Gateway, Setup, TIMEOUT, client};
use crate::upstream::Upstream;

/// Sends raw bytes and reads the answer's head.
pub(crate) async fn raw(gateway: &Gateway, request: &[u8]) -> (String, BufReader<TcpStream>) {
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut stream = BufReader::new(stream);
    let head = read_head(&mut stream).await;
    (head, stream)
}

pub(crate) async fn read_head(stream: &mut BufReader<TcpStream>) -> String {
    let mut head = String::new();
    let reading = async {
        while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).await.unwrap() > 0 {}
    };
    tokio::time::timeout(TIMEOUT, reading).await.unwrap();
    head
}

#[tokio::test]
async fn a_body_streams_both_ways_piece_by_piece() {
    // The service echoes every chunk as it comes, so a client that waits for the echo before it
    // sends more gets nowhere if anybody in between gathers the body.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = axum::Router::new().fallback(|body: Body| async { Response::new(body) });
    tokio::spawn(async move { axum::serve(listener, app).await });
    let fixture = Fixture::new().await;
    let gateway = fixture.gateway(&Setup::default().in_front_of(&url)).await;

    let request =
        b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n";
    let (head, mut stream) = raw(&gateway, request).await;
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("transfer-encoding: chunked"),
        "{head}"
    );
    let read = async |stream: &mut BufReader<TcpStream>, length: usize| {
        let mut piece = vec![0; length];
        tokio::time::timeout(TIMEOUT, stream.read_exact(&mut piece))
            .await
            .unwrap()
            .unwrap();
        String::from_utf8(piece).unwrap()
    };
    assert_eq!(read(&mut stream, 8).await, "3\r\none\r\n");
    stream.write_all(b"3\r\ntwo\r\n").await.unwrap();
    assert_eq!(read(&mut stream, 8).await, "3\r\ntwo\r\n");
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    assert_eq!(read(&mut stream, 5).await, "0\r\n\r\n");
}

#[tokio::test]
async fn a_large_body_arrives_whole_and_comes_back_whole() {
    let upstream =
        Upstream::answering(|seen, _| Response::new(Body::from(seen.body.clone()))).await;
    let fixture = Fixture::new().await;
    let gateway = fixture
        .gateway(&Setup::default().in_front_of(&upstream.url))
        .await;
    let body: Vec<u8> = (0..20_000_000_u32).map(|n| (n % 251) as u8).collect();
    let answer = client()
        .put(format!("{}/file", gateway.url))
        .body(body.clone())
        .send()
        .await
        .unwrap();
    let answer = Answer::of(answer).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body == body && upstream.seen()[0].body == body);
    assert_eq!(
        upstream.seen()[0].header("content-length"),
        Some("20000000")
    );
}

#[tokio::test]
async fn status_headers_and_empty_bodies_pass_as_they_are() {
    let upstream = Upstream::answering(|seen, _| {
        let builder = match seen.path.as_str() {
            "/none" => Response::builder().status(204),
            "/same" => Response::builder().status(304).header("etag", "\"1\""),
            "/teapot" => Response::builder().status(418),
            _ => Response::builder()
                .status(200)
                .header("content-length", "5"),
        };
        let builder = builder
            .header("set-cookie", "a=1")
            .header("set-cookie", "b=2")
            .header("connection", "x-hop")
            .header("x-hop", "1")
            .header("x-odd", http::HeaderValue::from_bytes(b"\xfc").unwrap());
        let head = seen.method == http::Method::HEAD || seen.path != "/five";
        builder
            .body(if head {
                Body::empty()
            } else {
                Body::from("hello")
            })
            .unwrap()
    })
    .await;
    let fixture = Fixture::new().await;
    let gateway = fixture
        .gateway(&Setup::default().in_front_of(&upstream.url))
        .await;
    for (path, status) in [
        ("/none", 204),
        ("/same", 304),
        ("/teapot", 418),
        ("/five", 200),
    ] {
        let answer = gateway.get(path).await;
        assert_eq!(answer.status, status, "{answer:?}");
        let cookies: Vec<_> = answer.headers.get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["a=1", "b=2"]);
        assert_eq!(answer.headers["x-odd"].as_bytes(), b"\xfc");
        assert!(
            !answer.headers.contains_key("x-hop") && !answer.headers.contains_key("connection"),
            "{answer:?}"
        );
    }
    let head = client()
        .head(format!("{}/five", gateway.url))
        .send()
        .await
        .unwrap();
    assert_eq!(head.headers()["content-length"], "5");
}

#[tokio::test]
async fn the_service_learns_for_whom_it_works_and_its_own_name() {
    let upstream = Upstream::start().await;
    let fixture = Fixture::new().await;
    let gateway = fixture
        .gateway(&Setup::default().in_front_of(&upstream.url))
        .await;
    let request = format!(
        "GET /a%20b/%2F?q=%41 HTTP/1.1\r\nhost: shop.example\r\nconnection: close, x-secret\r\nx-secret: 1\r\n\
         x-forwarded-for: 6.6.6.6\r\npgonce-fence: 9\r\nx-kept: {}\r\n\r\n",
        "v".repeat(9000)
    );
    let (head, _) = raw(&gateway, request.as_bytes()).await;
    assert!(head.starts_with("HTTP/1.1 201"), "{head}");
    let seen = &upstream.seen()[0];
    assert_eq!(seen.path, "/a%20b/%2F?q=%41");
    assert_eq!(
        seen.header("host"),
        Some(upstream.url.trim_start_matches("http://"))
    );
    assert_eq!(seen.header("x-forwarded-host"), Some("shop.example"));
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("x-kept").map(str::len), Some(9000));
    for gone in ["x-secret", "pgonce-fence", "connection"] {
        assert_eq!(seen.header(gone), None);
    }

    let setup = Setup {
        upstream: "host = \"client\"",
        listen: "trust_forwarded = true",
        ..Setup::default()
    };
    let base = format!("{}/base/", upstream.url);
    let gateway = fixture.gateway(&setup.in_front_of(&base)).await;
    let (head, _) =
        raw(&gateway, b"GET /x HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\nx-forwarded-for: 6.6.6.6\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 201"), "{head}");
    let seen = &upstream.seen()[1];
    assert_eq!(
        (seen.path.as_str(), seen.header("host")),
        ("/base/x", Some("shop.example"))
    );
    assert_eq!(seen.header("x-forwarded-for"), Some("6.6.6.6, 127.0.0.1"));
}

#[tokio::test]
async fn what_no_route_matches_and_what_is_no_http_is_answered_clearly() {
    let upstream = Upstream::start().await;
    let fixture = Fixture::new().await;
    let config = Setup::default()
        .in_front_of(&upstream.url)
        .replace("/{*rest}", "/files/{*rest}");
    let gateway = fixture.gateway(&config).await;
    assert_eq!(gateway.get("/nowhere").await.code(), "route_missing");
    let answer = gateway.get("/orders").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (405, "method_missing")
    );
    assert_eq!(answer.headers["allow"], "POST");
    let (head, _) = raw(
        &gateway,
        b"GET /files/x HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: irc\r\n\r\n",
    )
    .await;
    assert!(head.starts_with("HTTP/1.1 501 "), "{head}");
    let (head, _) = raw(
        &gateway,
        b"CONNECT files:443 HTTP/1.1\r\nhost: files\r\n\r\n",
    )
    .await;
    assert!(head.starts_with("HTTP/1.1 501 "), "{head}");
    assert!(upstream.seen().is_empty());
    // An offer of HTTP/2 may be ignored, and is.
    let (head, _) = raw(
        &gateway,
        b"GET /files/x HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: h2c\r\n\r\n",
    )
    .await;
    assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
}

/// What comes after a body, in both directions: the service's checksum, and the client's.
#[tokio::test]
async fn trailers_pass_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        let mut came = read_head(&mut stream).await;
        while !came.ends_with("\r\n\r\n") || !came.contains("\r\n0\r\n") {
            assert!(stream.read_line(&mut came).await.unwrap() > 0, "{came}");
        }
        let answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
            3\r\none\r\n0\r\nx-sum: 7\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        stream.flush().await.unwrap();
        came
    });
    let fixture = Fixture::new().await;
    let gateway = fixture.gateway(&Setup::default().in_front_of(&url)).await;
    let request = b"PUT /file HTTP/1.1\r\nhost: x\r\nte: trailers\r\nconnection: te\r\ntransfer-encoding: chunked\r\n\
        trailer: x-client-sum\r\n\r\n3\r\ntwo\r\n0\r\nx-client-sum: 9\r\n\r\n";
    let (head, mut stream) = raw(&gateway, request).await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let mut tail = String::new();
    let reading = async {
        while !tail.ends_with("\r\n\r\n") && stream.read_line(&mut tail).await.unwrap() > 0 {}
    };
    tokio::time::timeout(TIMEOUT, reading).await.unwrap();
    assert!(tail.contains("x-sum: 7"), "{tail}");
    let came = service.await.unwrap();
    assert!(came.contains("x-client-sum: 9"), "{came}");
}
