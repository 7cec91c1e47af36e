//! The database of the gateway: where its address is, and a pool of connections to it.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{AnswerKeys, Once, ReplayCache};
use pgonce_http::gateway::{Config, Encryption, UrlFrom};

use crate::database::Address;
use crate::exit::{self, CliError, Result};

pub(super) type Driver = TokioPostgres;

/// pgonce over the database that is given, or that the configuration names. Nothing is connected yet.
pub(super) fn once(config: &Config, given: Option<Address>) -> Result<Once<Driver>> {
    let (database, timeout) = (config.database(), config.database().timeout());
    let address = match given {
        Some(address) => address,
        None => address(config)?,
    };
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
    if let Some(table) = config.encryption() {
        once = once.encrypt_answers(answer_keys(table)?);
    }
    Ok(once.build()?)
}

/// The keys of a variable; the first one encrypts.
fn answer_keys(table: &Encryption) -> Result<AnswerKeys> {
    let name = table.keys_from();
    let wrong = |why: &str| {
        CliError::new(
            exit::USAGE,
            format!("the variable {name} {why}"),
            "Write id:64 hex digits, the newest first, with commas between; `openssl rand -hex 32` makes a key.",
        )
    };
    let list = std::env::var(name).map_err(|_| wrong("is not set, and `encryption` needs it"))?;
    let mut keys: Option<AnswerKeys> = None;
    for one in list.split(',').map(str::trim) {
        let (id, digits) = one
            .split_once(':')
            .ok_or_else(|| wrong("has a key without an id"))?;
        let key = key_bytes(digits).ok_or_else(|| wrong("has a key that is not 64 hex digits"))?;
        keys = Some(match keys {
            None => AnswerKeys::new(id, key)?,
            Some(keys) => keys.and_old(id, key)?,
        });
    }
    let keys = keys.ok_or_else(|| wrong("has no key"))?;
    let keys = match table.scopes() {
        Some(scopes) => keys.scopes(scopes),
        None => keys,
    };
    Ok(match table.accept_plain() {
        true => keys.accept_plain(),
        false => keys,
    })
}

/// A key of 32 bytes, from its hex digits.
fn key_bytes(digits: &str) -> Option<[u8; 32]> {
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
    let bytes = key_bytes(&digits).ok_or_else(|| {
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

fn address(config: &Config) -> Result<Address> {
    match config.database().url_from() {
        UrlFrom::Env(name) => crate::database::address_in_variable(&name),
        UrlFrom::File(file) => crate::database::address_in_file(&config.place_of(&file)),
    }
}
