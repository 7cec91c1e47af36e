//! A connection that speaks PostgreSQL's replication protocol: the driver cannot.

use std::io;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use fallible_iterator::FallibleIterator as _;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{Header, Message};
use postgres_protocol::message::frontend;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_rustls::TlsConnector;

use super::error::WalListenerError;
use super::{SILENCE, Target};

type Result<T> = std::result::Result<T, WalListenerError>;

/// What the server sends when bytes go both ways.
const COPY_BOTH: u8 = b'W';
/// Maximum length of a message from the server.
const MAX_LENGTH: i32 = 1 << 30;

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

pub(super) struct Connection {
    wire: Box<dyn Wire>,
    came: BytesMut,
}

impl Connection {
    /// To the first of the hosts that is not a standby.
    pub(super) async fn open(target: &Target) -> Result<Self> {
        let within = target.connect_timeout();
        let mut why = WalListenerError::new("08001", "the address has no host");
        for at in 0..target.address.get_hosts().len() {
            let tried = timeout(within, Self::open_one(target, at)).await;
            match tried.map_err(WalListenerError::from).flatten() {
                Ok(connection) => return Ok(connection),
                // What a server answers is worth more than that another does not answer.
                Err(error) if error.lasts() || !why.lasts() => why = error,
                Err(_) => {}
            }
        }
        Err(why)
    }

    async fn open_one(target: &Target, at: usize) -> Result<Self> {
        let address = &target.address;
        let ports = address.get_ports();
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let wire: Box<dyn Wire> = match (&address.get_hosts()[at], address.get_hostaddrs().get(at))
        {
            (Host::Unix(folder), _) => Box::new(unix(folder, port).await?),
            (Host::Tcp(name), ip) => {
                let stream = match ip {
                    Some(ip) => TcpStream::connect((*ip, port)).await?,
                    None => TcpStream::connect((name.as_str(), port)).await?,
                };
                stream.set_nodelay(true)?;
                // A slot is created only when others have ended: that has no limit, and nothing is sent meanwhile.
                let alive = TcpKeepalive::new()
                    .with_time(SILENCE)
                    .with_interval(SILENCE / 4);
                SockRef::from(&stream).set_tcp_keepalive(&alive)?;
                match &target.tls {
                    Some(config) => encrypted(stream, name, config.clone()).await?,
                    None => Box::new(stream),
                }
            }
        };
        let mut connection = Self {
            wire,
            came: BytesMut::new(),
        };
        connection.introduce(target).await?;
        let standby = connection
            .query("select pg_catalog.pg_is_in_recovery()")
            .await?;
        match standby.as_deref() {
            Some("f") => Ok(connection),
            _ => Err(WalListenerError::new("25006", "the server is a standby")),
        }
    }

    /// Says who we are and that we want to replicate.
    async fn introduce(&mut self, target: &Target) -> Result<()> {
        let address = &target.address;
        let user = address.get_user().unwrap_or("postgres");
        let parameters = [
            ("user", user),
            ("database", address.get_dbname().unwrap_or(user)),
            ("replication", "database"),
            ("client_encoding", "UTF8"),
            // Not the program's own: a name in synchronous_standby_names must never be met by chance.
            ("application_name", "pgonce tail"),
        ];
        let mut hello = BytesMut::new();
        frontend::startup_message(parameters, &mut hello)?;
        self.send(&hello).await?;
        let password = address.get_password().unwrap_or_default();
        let mut scram = ScramSha256::new(password, ChannelBinding::unsupported());
        loop {
            let mut answer = BytesMut::new();
            match self.message().await? {
                Message::AuthenticationCleartextPassword => {
                    frontend::password_message(password, &mut answer)?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(user.as_bytes(), password, body.salt());
                    frontend::password_message(hash.as_bytes(), &mut answer)?;
                }
                Message::AuthenticationSasl(body) => {
                    let mut offered = body.mechanisms();
                    if !offered.any(|mechanism| Ok(mechanism == SCRAM_SHA_256))? {
                        return Err(foreign("a way to log in that is not SCRAM-SHA-256"));
                    }
                    frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), &mut answer)?;
                }
                Message::AuthenticationSaslContinue(body) => {
                    scram.update(body.data())?;
                    frontend::sasl_response(scram.message(), &mut answer)?;
                }
                Message::AuthenticationSaslFinal(body) => scram.finish(body.data())?,
                Message::AuthenticationOk
                | Message::ParameterStatus(_)
                | Message::BackendKeyData(_) => {}
                Message::ReadyForQuery(_) => return Ok(()),
                _ => return Err(foreign("an answer to our greeting that we do not know")),
            }
            if !answer.is_empty() {
                self.send(&answer).await?;
            }
        }
    }

    /// One command; the first cell of its first row.
    pub(super) async fn query(&mut self, sql: &str) -> Result<Option<String>> {
        let mut query = BytesMut::new();
        frontend::query(sql, &mut query)?;
        self.send(&query).await?;
        let mut cell = None;
        loop {
            match self.message().await? {
                Message::DataRow(body) if cell.is_none() => {
                    let range = body.ranges().next()?.flatten();
                    let bytes = range.and_then(|range| body.buffer().get(range));
                    cell = bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                }
                Message::ReadyForQuery(_) => return Ok(cell),
                _ => {}
            }
        }
    }

    /// A command after which bytes go both ways.
    pub(super) async fn copy_both(&mut self, command: &str) -> Result<()> {
        let mut query = BytesMut::new();
        frontend::query(command, &mut query)?;
        self.send(&query).await?;
        while self.arrived().await?.tag() != COPY_BOTH {
            self.message().await?;
        }
        let header = self.arrived().await?;
        let length = usize::try_from(header.len()).unwrap_or_default() + 1;
        drop(self.came.split_to(length));
        Ok(())
    }

    /// The next piece of what the server copies. Nothing is lost when this is given up half-way.
    pub(super) async fn piece(&mut self) -> Result<Bytes> {
        loop {
            match self.message().await? {
                Message::CopyData(body) => return Ok(body.into_bytes()),
                Message::CopyDone => {
                    return Err(WalListenerError::new(
                        "57P01",
                        "the server has ended the stream",
                    ));
                }
                _ => {}
            }
        }
    }

    /// A piece of ours.
    pub(super) async fn say(&mut self, piece: &[u8]) -> Result<()> {
        let mut copied = BytesMut::new();
        frontend::CopyData::new(piece)?.write(&mut copied);
        self.send(&copied).await
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.wire.write_all(bytes).await?;
        Ok(self.wire.flush().await?)
    }

    async fn message(&mut self) -> Result<Message> {
        self.arrived().await?;
        match Message::parse(&mut self.came)? {
            Some(Message::ErrorResponse(body)) => Err(WalListenerError::from_server(&body)),
            Some(message) => Ok(message),
            None => Err(foreign("half a message")),
        }
    }

    /// Waits until a whole message is there.
    async fn arrived(&mut self) -> Result<Header> {
        loop {
            if let Some(header) = Header::parse(&self.came)? {
                if header.len() > MAX_LENGTH {
                    return Err(foreign("a message that is too long"));
                }
                if self.came.len() > usize::try_from(header.len()).unwrap_or_default() {
                    return Ok(header);
                }
            }
            if self.wire.read_buf(&mut self.came).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }
}

fn foreign(what: &str) -> WalListenerError {
    WalListenerError::new("08P01", format!("the server sent {what}"))
}

async fn unix(folder: &Path, port: u16) -> io::Result<UnixStream> {
    UnixStream::connect(folder.join(format!(".s.PGSQL.{port}"))).await
}

async fn encrypted(
    mut stream: TcpStream,
    name: &str,
    config: std::sync::Arc<rustls::ClientConfig>,
) -> Result<Box<dyn Wire>> {
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await?;
    if stream.read_u8().await? != b'S' {
        return Err(WalListenerError::new(
            "08001",
            "the server does not encrypt",
        ));
    }
    let name = rustls::pki_types::ServerName::try_from(name.to_owned());
    let name = name.map_err(|error| WalListenerError::new("08001", error.to_string()))?;
    Ok(Box::new(
        TlsConnector::from(config).connect(name, stream).await?,
    ))
}
