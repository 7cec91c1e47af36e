//! A light client, the same for every side: what it costs itself would hide what the others cost.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::bench::Result;
use crate::bench::business::Order;

/// Keeps as many connections open as were ever busy at once.
#[derive(Debug)]
pub(super) struct Client {
    address: SocketAddr,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// An answer, read whole.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) headers: HeaderMap,
    status: StatusCode,
    body: Bytes,
}

impl Client {
    pub(super) fn of(address: SocketAddr) -> Self {
        Self {
            address,
            idle: Mutex::default(),
        }
    }

    /// Sends an order. Every side gets the same bytes, the key as well.
    pub(super) async fn post(&self, path: &str, order: &Order) -> Result<Answer> {
        let request = Request::post(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .header("idempotency-key", &*order.number)
            .body(Full::from(serde_json::to_vec(order)?))?;
        let mut line = self.line().await?;
        let (head, body) = line.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line);
        Ok(Answer {
            headers: head.headers,
            status: head.status,
            body,
        })
    }

    async fn line(&self) -> Result<SendRequest<Full<Bytes>>> {
        loop {
            let idle = self
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop();
            let Some(mut line) = idle else { break };
            if line.ready().await.is_ok() {
                return Ok(line);
            }
        }
        let wire = TcpStream::connect(self.address).await?;
        wire.set_nodelay(true)?;
        let (line, connection) = handshake(TokioIo::new(wire)).await?;
        // Ends with the line.
        tokio::spawn(connection);
        Ok(line)
    }
}

impl Answer {
    /// A side that only refuses, or finds old answers where it should do new work, would look fast.
    pub(super) fn must_be(self, replayed: bool) -> Result<Self> {
        let says_so = self.headers.contains_key("idempotent-replayed");
        if self.status == StatusCode::CREATED && says_so == replayed {
            return Ok(self);
        }
        let body = String::from_utf8_lossy(&self.body);
        let wanted = if replayed { "a replay" } else { "a new order" };
        Err(format!("expected {wanted}, got {}: {body}", self.status).into())
    }
}
