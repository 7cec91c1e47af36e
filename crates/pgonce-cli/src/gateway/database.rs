//! The database of the gateway: where its address is, and a pool of connections to it.

use std::time::Duration;

use deadpool_postgres::{Manager, Pool, Runtime};
use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_http::gateway::{Config, UrlFrom};
use tokio_postgres::NoTls;
use tokio_postgres::config::SslMode;

use crate::exit::{self, Result, Trouble};

pub(super) type Driver = TokioPostgres;

/// How long a connection that went silent is believed in, where the system can be told.
const SILENCE: Duration = Duration::from_secs(30);

/// pgonce over the database that the configuration names. Nothing is connected yet.
pub(super) fn once(config: &Config) -> Result<Once<Driver>> {
    let (database, timeout) = (config.database(), config.database().timeout());
    let mut address = address(config)?;
    if address.get_application_name().is_none() {
        address.application_name("pgonce gateway");
    }
    if address.get_connect_timeout().is_none() {
        address.connect_timeout(timeout);
    }
    if address.get_tcp_user_timeout().is_none() {
        address.tcp_user_timeout(SILENCE);
    }
    let manager = match address.get_ssl_mode() {
        SslMode::Require => Manager::new(address, crate::tls::connector()?),
        _ => Manager::new(address, NoTls),
    };
    let pool = Pool::builder(manager)
        .max_size(database.connections())
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(timeout))
        .create_timeout(Some(timeout))
        .recycle_timeout(Some(timeout))
        .build()
        .map_err(|error| {
            Trouble::new(
                exit::FAILED,
                format!("no pool could be made: {error}"),
                "Please report it.",
            )
        })?;
    let owner = format!("gateway, process {}", std::process::id());
    let once = Once::builder(TokioPostgres::new(pool))
        .schema(database.schema())
        .owner(owner);
    Ok(once.build()?)
}

fn address(config: &Config) -> Result<tokio_postgres::Config> {
    let (found, place) = match config.database().url_from() {
        UrlFrom::Env(name) => {
            let found = std::env::var(&name).ok().filter(|url| !url.is_empty());
            let place = format!("the variable {name}");
            (found.ok_or_else(|| "it is not set".to_owned()), place)
        }
        UrlFrom::File(file) => {
            let file = config.place_of(&file);
            let place = format!("the file {}", file.display());
            (
                std::fs::read_to_string(&file).map_err(|error| error.to_string()),
                place,
            )
        }
    };
    let unreadable = |why: String| {
        Trouble::new(
            exit::USAGE,
            format!("the address of the database cannot be read from {place}: {why}"),
            "Put postgres://user:password@host:5432/database there; `database` in the file says where it is looked for.",
        )
    };
    let url = found.map_err(unreadable)?;
    // The error's own text names the part that is wrong, never the address, which has the password.
    url.trim()
        .parse()
        .map_err(|error: tokio_postgres::Error| unreadable(error.to_string()))
}
