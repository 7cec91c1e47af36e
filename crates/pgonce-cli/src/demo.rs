//! The console that `pgonce demo` shows beside its storm.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_console::{Access, Console};
use pgonce_http::gateway::unstable::serve_router;
use pgonce_lab::demo::{Error, WATCH};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::database::{Address, pool};

/// While PostgreSQL is crashed, a page says so soon.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Serves the console of this database on a free port of loopback, as long as the program runs.
pub(crate) async fn console(database: String) -> Result<SocketAddr, Error> {
    let pool = pool(Address::parse(&database)?, WATCH, 4, TIMEOUT)
        .map_err(|error| error.words().0.to_owned())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let router = Console::new(TokioPostgres::new(pool))
        .instance("demo")
        .access(Access::local())
        .router();
    tokio::spawn(serve_router(listener, router, 64, CancellationToken::new()));
    Ok(address)
}
