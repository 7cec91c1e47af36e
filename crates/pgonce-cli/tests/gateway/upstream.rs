//! Services behind the gateway: well-behaved ones, and those that break off.

use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, Method};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

/// A request as a service saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// The answer to a request, by the request and its number.
type Answer = dyn Fn(&Seen, usize) -> Response + Send + Sync;

/// A service that notes what it is asked and answers 201 with a number, once its gate is open.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    gate: Arc<watch::Sender<bool>>,
    answer: Arc<Answer>,
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        Self::answering(|_, number| {
            Response::builder()
                .status(201)
                .header("location", format!("/orders/{number}"))
                .header("content-type", "application/json")
                .body(Body::from(format!(r#"{{"id":{number}}}"#)))
                .unwrap()
        })
        .await
    }

    /// Answers by a function of the request and its number.
    pub(crate) async fn answering(
        answer: impl Fn(&Seen, usize) -> Response + Send + Sync + 'static,
    ) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), answer)
    }

    pub(crate) fn on(
        listener: TcpListener,
        answer: impl Fn(&Seen, usize) -> Response + Send + Sync + 'static,
    ) -> Self {
        let upstream = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            seen: Arc::default(),
            gate: Arc::new(watch::Sender::new(true)),
            answer: Arc::new(answer),
        };
        let app = axum::Router::new()
            .fallback(note)
            .with_state(upstream.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        upstream
    }

    /// Holds answers back from now on, or lets them go.
    pub(crate) fn hold(&self, hold: bool) {
        self.gate.send_replace(!hold);
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The requests that make something.
    pub(crate) fn orders(&self) -> Vec<Seen> {
        self.seen()
            .into_iter()
            .filter(|seen| seen.method == Method::POST)
            .collect()
    }
}

async fn note(State(upstream): State<Upstream>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let path = head.uri.path_and_query().unwrap().to_string();
    let seen = Seen {
        method: head.method,
        path,
        headers: head.headers,
        body,
    };
    let number = {
        let mut all = upstream.seen.lock().unwrap();
        all.push(seen.clone());
        all.len()
    };
    upstream
        .gate
        .subscribe()
        .wait_for(|open| *open)
        .await
        .unwrap();
    (upstream.answer)(&seen, number)
}

/// What a bad service does once it has read a request whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bad {
    Closes,
    StaysSilent,
    BreaksOffInTheHead,
    BreaksOffInTheBody,
    StallsInTheBody,
    BreaksOffInAChunk,
    MarksNoEnd,
}

/// A service that reads requests whole and does not answer them whole.
pub(crate) struct BadUpstream {
    pub(crate) url: String,
    /// The heads of the requests it has read.
    heads: Arc<Mutex<Vec<String>>>,
}

impl BadUpstream {
    pub(crate) async fn start(bad: Bad) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = heads.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let noted = noted.clone();
                tokio::spawn(async move {
                    if let Some(head) = read_request(&mut stream).await {
                        noted.lock().unwrap().push(head);
                        misbehave(stream, bad).await;
                    }
                });
            }
        });
        Self { url, heads }
    }

    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

async fn misbehave(mut stream: TcpStream, bad: Bad) {
    let said: &[u8] = match bad {
        Bad::Closes | Bad::StaysSilent => b"",
        Bad::BreaksOffInTheHead => b"HTTP/1.1 201 Created\r\ncontent-le",
        Bad::BreaksOffInTheBody | Bad::StallsInTheBody => {
            b"HTTP/1.1 201 Created\r\ncontent-length: 10\r\n\r\nhalf"
        }
        Bad::BreaksOffInAChunk => {
            b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n8\r\nhalf"
        }
        Bad::MarksNoEnd => b"HTTP/1.1 201 Created\r\n\r\nhalf",
    };
    let _ = stream.write_all(said).await;
    let _ = stream.flush().await;
    if matches!(bad, Bad::StaysSilent | Bad::StallsInTheBody) {
        // Until the other side has had enough.
        let _ = stream.read(&mut [0; 64]).await;
    }
}

/// The head of a request with a length, after its body was read as well.
pub(crate) async fn read_request(
    stream: &mut (impl tokio::io::AsyncRead + Unpin),
) -> Option<String> {
    let mut read = Vec::new();
    let head = loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            break String::from_utf8_lossy(&read[..end]).to_lowercase();
        }
        let mut piece = [0; 1024];
        match stream.read(&mut piece).await {
            Ok(length @ 1..) => read.extend_from_slice(&piece[..length]),
            _ => return None,
        }
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut missing = length.unwrap_or(0_usize) + head.len() + 4 - read.len();
    while missing > 0 {
        let mut piece = [0; 1024];
        match stream.read(&mut piece).await {
            Ok(length @ 1..) => missing = missing.saturating_sub(length),
            _ => return None,
        }
    }
    Some(head)
}

/// A port that nobody listens on, and that nobody else gets meanwhile.
pub(crate) fn silent_place() -> TcpSocket {
    let place = TcpSocket::new_v4().unwrap();
    place.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    place
}
