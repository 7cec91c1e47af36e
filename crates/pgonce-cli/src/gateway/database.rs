//! The database of the gateway: where its address is, and a pool of connections to it.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Once, ReplayCache};
use pgonce_http::gateway::{Config, UrlFrom};

use crate::exit::{self, CliError, Result};

pub(super) type Driver = TokioPostgres;

/// pgonce over the database that the configuration names. Nothing is connected yet.
pub(super) fn once(config: &Config) -> Result<Once<Driver>> {
    let (database, timeout) = (config.database(), config.database().timeout());
    let address = address(config)?;
    let pool = crate::database::pool(address, "pgonce gateway", database.connections(), timeout)?;
    let owner = format!("gateway, process {}", std::process::id());
    let mut once = Once::builder(TokioPostgres::new(pool))
        .schema(database.schema())
        .owner(owner);
    if let Some(table) = config.cache() {
        let cache = match table.server_from() {
            Some((url, key)) => server(url, key)?.and_in_process(),
            None => ReplayCache::in_process(),
        };
        once = once.cache(
            cache
                .max_bytes(table.memory())
                .max_entries(table.memory() / 512)
                .ttl(table.ttl())
                .max_staleness(table.max_staleness())
                .timeout(table.timeout()),
        );
    }
    Ok(once.build()?)
}

#[cfg(feature = "redis")]
fn server(url: &str, key: &str) -> Result<ReplayCache> {
    let hint = "`cache` in the file names the variables; `openssl rand -hex 32` makes a key.";
    let value = |name: &str| {
        std::env::var(name).map_err(|_| {
            let text = format!("the cache needs the variable {name}, which is not set");
            CliError::new(exit::USAGE, text, hint)
        })
    };
    let digits = value(key)?;
    let bytes = |digits: &str| -> Option<[u8; 32]> {
        if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let pairs = digits.as_bytes().chunks(2);
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        pairs
            .map(byte)
            .collect::<Option<Vec<u8>>>()?
            .try_into()
            .ok()
    };
    let bytes = bytes(&digits).ok_or_else(|| {
        let text = format!("the variable {key} does not hold 64 hex digits");
        CliError::new(exit::USAGE, text, hint)
    })?;
    Ok(ReplayCache::redis(&value(url)?, bytes)?)
}

#[cfg(not(feature = "redis"))]
fn server(_: &str, _: &str) -> Result<ReplayCache> {
    Err(CliError::new(
        exit::USAGE,
        "this program was built without the feature redis".to_owned(),
        "Leave `url_env` out, and the cache is in the memory of the process.",
    ))
}

fn address(config: &Config) -> Result<crate::database::Address> {
    match config.database().url_from() {
        UrlFrom::Env(name) => crate::database::address_in_variable(&name),
        UrlFrom::File(file) => crate::database::address_in_file(&config.place_of(&file)),
    }
}
