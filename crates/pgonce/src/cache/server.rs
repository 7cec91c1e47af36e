//! Redis or Valkey, which is believed nothing: neither that it answers in time, nor that what it returns is ours.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue};
use ring::hmac;

use super::{Counters, Entry, Name, ReplayCache, Tier, add, lock};
use crate::seal::one_use::{self, SALT_BYTES};

/// The format of values. Another one is ignored.
const VERSION: u8 = 1;
/// What the keys of values are derived for.
const PURPOSE: &[u8] = b"pgonce replay 1";
/// So many errors in a row open the breaker.
const MAX_ERRORS: u32 = 5;
/// How long the server is left alone first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];
/// Maximum time of what no request waits for: connecting and writing.
const ASIDE: Duration = Duration::from_secs(1);

/// A server that keeps answers for all processes.
pub(super) struct Server {
    client: Client,
    key: [u8; 32],
    names: hmac::Key,
    timeout: Duration,
    link: Arc<Mutex<Link>>,
    counters: Arc<Counters>,
}

/// The connection, and with it the breaker.
struct Link {
    up: Option<MultiplexedConnection>,
    /// How often it was connected, so that the end of an older one says nothing about this one.
    number: u64,
    errors: u32,
    /// The breaker: the server is left alone.
    open: bool,
    pause: Duration,
    /// When it is worth connecting; `None` while somebody does.
    next: Option<Instant>,
}

impl Link {
    /// After a pause at least as long as the one before. Not all processes at the same moment.
    fn break_off(&mut self) {
        (self.up, self.errors, self.open) = (None, 0, true);
        self.next = Some(Instant::now() + self.pause.mul_f64(rand::random_range(0.5..1.0)));
        self.pause = (self.pause * 2).min(PAUSES[1]);
    }
}

impl Server {
    pub(super) fn new(settings: &ReplayCache, counters: Arc<Counters>) -> Option<Self> {
        let (client, key) = settings.server.clone()?;
        Some(Self {
            client,
            names: hmac::Key::new(hmac::HMAC_SHA256, &key),
            key,
            timeout: settings.timeout,
            link: Arc::new(Mutex::new(Link {
                up: None,
                number: 0,
                errors: 0,
                open: false,
                pause: PAUSES[0],
                next: Some(Instant::now()),
            })),
            counters,
        })
    }

    pub(super) fn is_left_alone(&self) -> bool {
        lock(&self.link).open
    }

    /// The connection, where there is one. No request waits for one: it is made aside.
    fn connection(&self) -> Option<(u64, MultiplexedConnection)> {
        let mut link = lock(&self.link);
        if let Some(up) = &link.up {
            return Some((link.number, up.clone()));
        }
        if link.next.is_some_and(|next| next <= Instant::now()) {
            link.next = None;
            let (client, link, counters) = (
                self.client.clone(),
                self.link.clone(),
                self.counters.clone(),
            );
            tokio::spawn(async move {
                let connected = connect(&client).await;
                let mut link = lock(&link);
                match connected {
                    Some(connection) => {
                        link.number += 1;
                        (link.up, link.open) = (Some(connection), false);
                    }
                    None => {
                        add(&counters.errors);
                        link.break_off();
                    }
                }
            });
        }
        None
    }

    /// Sends a command. Errors and answers that come too late count against the server.
    async fn call<T: FromRedisValue>(&self, command: &Cmd, timeout: Duration) -> Option<T> {
        let (number, mut connection) = self.connection()?;
        let called = tokio::time::timeout(timeout, command.query_async(&mut connection)).await;
        let mut link = lock(&self.link);
        match called {
            Ok(Ok(value)) => {
                if link.number == number {
                    (link.errors, link.pause) = (0, PAUSES[0]);
                }
                return Some(value);
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "the cache failed");
                link.errors += if error.is_unrecoverable_error() {
                    MAX_ERRORS
                } else {
                    1
                };
            }
            Err(_) => link.errors += 1,
        }
        add(&self.counters.errors);
        if link.number == number && link.up.is_some() && link.errors >= MAX_ERRORS {
            link.break_off();
        }
        None
    }

    /// Who has no key learns no name.
    fn key_of(&self, name: &Name) -> String {
        let mut key = "pgonce:replay:".to_owned();
        for byte in &hmac::sign(&self.names, &name.0).as_ref()[..16] {
            let _ = write!(key, "{byte:02x}");
        }
        key
    }

    fn seal(&self, name: &Name, entry: &Entry) -> Option<Vec<u8>> {
        let data = serde_json::to_vec(entry).ok()?;
        let (salt, data) = one_use::seal(&self.key, PURPOSE, &bound_to(name), data)?;
        Some([&[VERSION], &salt[..], &data].concat())
    }

    /// The entry of a value that was sealed with our key, for this intent and in this format.
    fn open(&self, name: &Name, mut value: Vec<u8>) -> Option<Entry> {
        if value.first() != Some(&VERSION) {
            return None;
        }
        let (salt, data) = value.get_mut(1..)?.split_at_mut_checked(SALT_BYTES)?;
        let plain = one_use::open(&self.key, PURPOSE, &bound_to(name), salt, data)?;
        serde_json::from_slice(plain).ok()
    }
}

fn bound_to(name: &Name) -> Vec<u8> {
    [&[VERSION], &name.0[..]].concat()
}

impl Tier for Server {
    async fn get(&self, name: &Name) -> Option<Arc<Entry>> {
        let mut get = redis::cmd("GET");
        get.arg(self.key_of(name));
        let value: Option<Vec<u8>> = self.call(&get, self.timeout).await?;
        let entry = self.open(name, value?);
        if entry.is_none() {
            add(&self.counters.refused);
        }
        entry.map(Arc::new)
    }

    async fn put(&self, name: &Name, entry: &Entry, time: Duration) {
        let Some(value) = self.seal(name, entry) else {
            return;
        };
        let mut set = redis::cmd("SET");
        set.arg(self.key_of(name)).arg(value);
        set.arg("PX").arg(time.as_millis().max(1) as u64);
        let _: Option<()> = self.call(&set, ASIDE).await;
    }
}

/// Connects, and asks: it may be somebody who listens and does not answer.
async fn connect(client: &Client) -> Option<MultiplexedConnection> {
    let limits = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(ASIDE))
        .set_response_timeout(Some(ASIDE));
    let connecting = client.get_multiplexed_async_connection_with_config(&limits);
    let connected = async {
        let mut connection = connecting.await?;
        redis::cmd("PING").exec_async(&mut connection).await?;
        Ok::<_, redis::RedisError>(connection)
    };
    let connected = connected.await;
    if let Err(error) = &connected {
        tracing::debug!(%error, "the cache could not be reached");
    }
    connected.ok()
}

/// Keys and passwords stay out of logs.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}
