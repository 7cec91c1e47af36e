//! The service under the storm: a process of its own, so that it can be killed.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use axum::http::{HeaderValue, Request};
use axum::middleware::map_request;
use clap::ValueEnum;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::{oneshot, watch};

use super::{Result, shop, usual};

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Which code runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Code {
    /// The orders service, with pgonce.
    Pgonce,
    /// Insert and answer, as usual.
    Usual,
    /// The orders service, with the classic mistake: a new key for every attempt.
    KeyPerAttempt,
}

/// The running service. Dropped, it is ended.
#[derive(Debug)]
pub(super) struct Service {
    code: Code,
    database: String,
    child: Child,
    address: watch::Sender<SocketAddr>,
}

impl Service {
    pub(super) async fn start(code: Code, database: &str) -> Result<Self> {
        let (child, address) = spawn(code, database).await?;
        Ok(Self {
            code,
            database: database.to_owned(),
            child,
            address: watch::Sender::new(address),
        })
    }

    /// Where it listens at the moment.
    pub(super) fn address(&self) -> watch::Receiver<SocketAddr> {
        self.address.subscribe()
    }

    /// SIGKILL; returns when it is gone.
    pub(super) async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Starts it anew after a kill.
    pub(super) async fn start_again(&mut self) -> Result<()> {
        let (child, address) = spawn(self.code, &self.database).await?;
        self.child = child;
        self.address.send_replace(address);
        Ok(())
    }
}

async fn spawn(code: Code, database: &str) -> Result<(Child, SocketAddr)> {
    let code = code
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["demo", "--serve", &code, "--database", database])
        // Never written to: the service ends when this end of the pipe is closed, in whatever
        // way we end.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let out = child
        .stdout
        .take()
        .ok_or("the service has no standard output")?;
    let mut lines = BufReader::new(out).lines();
    let line = tokio::time::timeout(START_TIMEOUT, lines.next_line()).await;
    let line =
        line.map_err(|_| format!("the service did not start within {START_TIMEOUT:?}"))??;
    let line = line.ok_or("the service ended while starting")?;
    let address = line
        .parse()
        .map_err(|_| format!("the service said {line:?} instead of its address"))?;
    Ok((child, address))
}

/// The service's side: serves until it is killed or its parent process has ended.
pub(super) async fn serve(code: Code, database: &str) -> Result<()> {
    let once = shop::connect(database, Duration::from_secs(2))?;
    let router = match code {
        Code::Pgonce => shop::router(&once)?,
        Code::Usual => usual::router(once.driver().pool().clone()),
        Code::KeyPerAttempt => shop::router(&once)?.layer(map_request(new_key)),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;

    let (parent_is_there, parent_has_ended) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(parent_is_there);
    });
    tokio::select! {
        served = async { axum::serve(listener, router).await } => Ok(served?),
        _ = parent_has_ended => Ok(()),
    }
}

async fn new_key<B>(mut request: Request<B>) -> Request<B> {
    if let Ok(key) = HeaderValue::from_str(&pgonce::key::fresh()) {
        request.headers_mut().insert("idempotency-key", key);
    }
    request
}
