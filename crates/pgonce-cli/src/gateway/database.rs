//! The database of the gateway: where its address is, and a pool of connections to it.

use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_http::gateway::{Config, UrlFrom};

use crate::exit::Result;

pub(super) type Driver = TokioPostgres;

/// pgonce over the database that the configuration names. Nothing is connected yet.
pub(super) fn once(config: &Config) -> Result<Once<Driver>> {
    let (database, timeout) = (config.database(), config.database().timeout());
    let address = address(config)?;
    let pool = crate::database::pool(address, "pgonce gateway", database.connections(), timeout)?;
    let owner = format!("gateway, process {}", std::process::id());
    let once = Once::builder(TokioPostgres::new(pool))
        .schema(database.schema())
        .owner(owner);
    Ok(once.build()?)
}

fn address(config: &Config) -> Result<crate::database::Address> {
    match config.database().url_from() {
        UrlFrom::Env(name) => crate::database::address_in_variable(&name),
        UrlFrom::File(file) => crate::database::address_in_file(&config.place_of(&file)),
    }
}
