//! Requests over connections of their own: nothing is sent that was not asked for, no connection is
//! used twice, nothing is sent again in silence, and a connection can be cut anywhere.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderValue};
use http::{HeaderMap, Method, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::answer::{Answer, Response};
use crate::exit::{self, CliError, Result};
use crate::tls;

/// No answer is read beyond this.
const LARGEST_ANSWER: usize = 16 * 1024 * 1024;

/// A place to send requests to. Its name is resolved once: all requests go to the same machine.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) url: String,
    authority: HeaderValue,
    path: String,
    addresses: Vec<SocketAddr>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.url)
    }
}

/// Both kinds of connections.
trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

impl Endpoint {
    /// `cacert` names a PEM file of more authorities to trust.
    pub(super) async fn resolve(url: &str, cacert: Option<&std::path::Path>) -> Result<Self> {
        let wrong = |why: &str| {
            CliError::new(
                exit::USAGE,
                format!("the URL {url:?} cannot be used: {why}"),
                "Write it as http://host:port/path or https://host/path.",
            )
        };
        let uri: Uri = url
            .parse()
            .map_err(|error: http::uri::InvalidUri| wrong(&error.to_string()))?;
        let encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("it starts with neither http:// nor https://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(CliError::new(
                exit::USAGE,
                "the URL has a user or a password in it",
                "Give them as a header from a file, --header @FILE, with a line such as Authorization: Basic …",
            ));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority
            .port_u16()
            .unwrap_or(if encrypted { 443 } else { 80 });
        let addresses: Vec<_> = tokio::net::lookup_host((host.as_str(), port))
            .await
            .map_err(|error| {
                CliError::new(
                    exit::INCONCLUSIVE,
                    format!("the host {host} was not found: {error}"),
                    "Is its name right, and is there a network?",
                )
            })?
            .collect();
        let tls = if encrypted {
            let config = tls::client_config(cacert)?;
            let name =
                ServerName::try_from(host.clone()).map_err(|error| wrong(&error.to_string()))?;
            Some((TlsConnector::from(Arc::new(config)), name))
        } else {
            None
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            url: url.to_owned(),
            authority: HeaderValue::from_str(authority.as_str())
                .map_err(|error| wrong(&error.to_string()))?,
            path: if path.is_empty() { "/" } else { path }.to_owned(),
            addresses,
            tls,
        })
    }

    /// Whether all that is sent stays on this machine.
    pub(super) fn is_this_machine(&self) -> bool {
        !self.addresses.is_empty() && self.addresses.iter().all(|at| at.ip().is_loopback())
    }

    pub(super) fn host(&self) -> &str {
        self.authority.to_str().unwrap_or_default()
    }

    async fn connect(&self) -> std::result::Result<Box<dyn Duplex>, String> {
        let stream = TcpStream::connect(&self.addresses[..])
            .await
            .map_err(|error| format!("no connection to {}: {error}", self.host()))?;
        // A cut must come after what was written, not together with it.
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some((connector, name)) => {
                let encrypted = connector.connect(name.clone(), stream).await;
                let encrypted = encrypted.map_err(|error| {
                    format!("no encrypted connection to {}: {error}", self.host())
                })?;
                Ok(Box::new(encrypted))
            }
        }
    }
}

/// One request.
#[derive(Debug, Clone)]
pub(super) struct Ask<'a> {
    pub(super) at: &'a Endpoint,
    pub(super) method: &'a Method,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// An open connection, for one request.
pub(super) struct Ready(SendRequest<Full<Bytes>>);

impl Ask<'_> {
    /// Opens a connection, so that the request itself can start without delay.
    pub(super) async fn ready(&self) -> std::result::Result<Ready, String> {
        let stream = TokioIo::new(self.at.connect().await?);
        let (mut sender, connection) = http1::Builder::new()
            .title_case_headers(true)
            .handshake(stream)
            .await
            .map_err(|error| error.to_string())?;
        // Its end is seen by the sender.
        tokio::spawn(connection);
        sender.ready().await.map_err(|error| error.to_string())?;
        Ok(Ready(sender))
    }

    pub(super) async fn send(&self, Ready(mut sender): Ready) -> Response {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self
            .at
            .path
            .parse()
            .map_err(|error| format!("the path cannot be sent: {error}"))?;
        *request.headers_mut() = self.all_headers();
        let asked = Instant::now();
        let lost = |error: &dyn std::error::Error| match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| lost(&error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, LARGEST_ANSWER)
            .collect()
            .await
            .map_err(|error| format!("the answer broke off: {error}"))?;
        Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: body.to_bytes(),
            id: None,
            asked,
            took: asked.elapsed(),
        })
    }

    /// Sends the head and so much of the body; gives the connection, to be dropped.
    pub(super) async fn send_part(
        &self,
        body: usize,
    ) -> std::result::Result<impl Sized + use<>, String> {
        let mut stream = self.at.connect().await?;
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.at.path).into_bytes();
        for (name, value) in &self.all_headers() {
            text.extend_from_slice(name.as_str().as_bytes());
            text.extend_from_slice(b": ");
            text.extend_from_slice(value.as_bytes());
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"\r\n");
        text.extend_from_slice(&self.body[..body.min(self.body.len())]);
        let written = async {
            stream.write_all(&text).await?;
            stream.flush().await
        };
        // An API that hangs up early has been cut, too.
        let _ = written.await;
        Ok(stream)
    }

    fn all_headers(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.insert(HOST, self.at.authority.clone());
        if !self.body.is_empty() || *self.method != Method::GET {
            headers.insert(CONTENT_LENGTH, self.body.len().into());
        }
        headers
    }
}
