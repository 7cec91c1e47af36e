use std::fmt;
use std::time::Duration;

#[cfg(feature = "redis")]
use crate::error::{Error, ErrorDetail, Result};

/// Settings of a cache of stored answers, for [`OnceBuilder::cache`](crate::OnceBuilder::cache). It answers duplicates without
/// asking the database, and decides nothing: a request that it has no answer for is claimed as without it.
///
/// ```
/// use std::time::Duration;
/// use pgonce::ReplayCache;
///
/// let cache = ReplayCache::in_process()
///     .max_entries(50_000)
///     .max_bytes(64 << 20)
///     .max_staleness(Duration::from_millis(500));
/// # let _ = cache;
/// ```
#[derive(Clone)]
#[must_use]
pub struct ReplayCache {
    pub(super) in_process: bool,
    pub(super) max_entries: usize,
    pub(super) max_bytes: usize,
    pub(super) ttl: Duration,
    pub(super) max_staleness: Duration,
    pub(super) timeout: Duration,
    /// A server, and the key that values there are sealed with.
    #[cfg(feature = "redis")]
    pub(super) server: Option<(redis::Client, [u8; 32])>,
}

impl ReplayCache {
    fn new(in_process: bool) -> Self {
        Self {
            in_process,
            max_entries: 10_000,
            max_bytes: 16 << 20,
            ttl: Duration::from_secs(600),
            max_staleness: Duration::from_secs(1),
            timeout: Duration::from_millis(5),
            #[cfg(feature = "redis")]
            server: None,
        }
    }

    /// In the memory of this process.
    pub fn in_process() -> Self {
        Self::new(true)
    }

    /// In Redis or Valkey, shared by every process that has the same `key`: 32 random bytes that nobody else
    /// has. Values there are encrypted, authenticated and bound to their intent: what another wrote, or moved, is ignored.
    ///
    /// The address is as `redis://user:password@host:6379/0`, or `rediss://` for TLS; one that cannot be read is
    /// [`Error::Invalid`]. Nothing is connected here, and a server that is away is asked again later and later.
    ///
    /// ```
    /// use pgonce::ReplayCache;
    ///
    /// let cache = ReplayCache::redis("redis://:secret@127.0.0.1:6379", [7; 32])?.and_in_process();
    /// assert!(!format!("{cache:?}").contains("secret"));
    /// # Ok::<(), pgonce::Error>(())
    /// ```
    #[cfg(feature = "redis")]
    pub fn redis(url: &str, key: [u8; 32]) -> Result<Self> {
        let client = redis::Client::open(url).map_err(|error| {
            Error::Invalid(ErrorDetail::new(
                "22023",
                format!("the address of the cache cannot be read: {error}"),
                "Such as redis://127.0.0.1:6379/0, or rediss:// for TLS.",
            ))
        })?;
        Ok(Self {
            server: Some((client, key)),
            ..Self::new(false)
        })
    }

    /// Also in the memory of this process, which is asked first.
    pub fn and_in_process(mut self) -> Self {
        self.in_process = true;
        self
    }

    /// Maximum number of answers in the memory of this process. Default: 10,000.
    pub fn max_entries(mut self, entries: usize) -> Self {
        self.max_entries = entries;
        self
    }

    /// Maximum size of the answers in the memory of this process, with what belongs to them. Default: 16 MiB.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Maximum time for which an answer is used before it is read again, and never beyond its expiry. Answers that are in
    /// use are read again before. Default: ten minutes.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Maximum time for which an answer is still replayed after an operator has evicted it, or after the database
    /// was restored. Twice in that time the database is asked whether there was such an act, while
    /// there are requests. Default: one second.
    pub fn max_staleness(mut self, time: Duration) -> Self {
        self.max_staleness = time;
        self
    }

    /// Maximum time that a request waits for the cache before the database is asked. Default: 5 milliseconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// Keys and passwords stay out of logs.
impl fmt::Debug for ReplayCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayCache")
            .field("in_process", &self.in_process)
            .field("max_entries", &self.max_entries)
            .field("max_bytes", &self.max_bytes)
            .field("ttl", &self.ttl)
            .field("max_staleness", &self.max_staleness)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
