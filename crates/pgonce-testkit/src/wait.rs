use std::{fmt::Display, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::{Client, NoTls};

use crate::{Error, Result};

const LOCK_WAIT: Duration = Duration::from_secs(20);

/// Asks `probe` again and again until it answers true; an error that names
/// `what` was awaited if that does not happen `within` the time.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> pgonce_testkit::Result<()> {
/// use std::time::Duration;
/// use pgonce_testkit::wait_until;
///
/// let mut asked = 0;
/// wait_until("three questions", Duration::from_secs(5), || {
///     asked += 1;
///     async move { asked == 3 }
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
pub async fn wait_until<F>(
    what: impl Display,
    within: Duration,
    mut probe: impl FnMut() -> F,
) -> Result<()>
where
    F: Future<Output = bool>,
{
    let mut deadline = Deadline::new(what, within);
    while !matches!(timeout_at(deadline.deadline, probe()).await, Ok(true)) {
        deadline.pause().await?;
    }
    Ok(())
}

/// Pauses between looks at a state, and how many of them are enough.
pub(crate) struct Deadline {
    what: String,
    within: Duration,
    deadline: Instant,
    next_pause: Duration,
}

impl Deadline {
    pub(crate) fn new(what: impl Display, within: Duration) -> Self {
        Self {
            what: what.to_string(),
            within,
            deadline: Instant::now() + within,
            next_pause: Duration::from_millis(1),
        }
    }

    /// A short pause, or an error when the time is up.
    pub(crate) async fn pause(&mut self) -> Result<()> {
        if Instant::now() >= self.deadline {
            return Err(Error::TimedOut {
                what: self.what.clone(),
                within: self.within,
            });
        }
        sleep(self.next_pause).await;
        self.next_pause = (self.next_pause * 2).min(Duration::from_millis(20));
        Ok(())
    }
}

/// Which session of a server is meant.
#[derive(Clone, Debug)]
pub enum Session {
    /// The session with this `pg_backend_pid()`.
    Pid(i32),
    /// A session with this `application_name`.
    Application(String),
}

impl From<i32> for Session {
    fn from(pid: i32) -> Self {
        Self::Pid(pid)
    }
}

impl From<&str> for Session {
    fn from(name: &str) -> Self {
        Self::Application(name.to_owned())
    }
}

/// Waits (20 seconds at most) until PostgreSQL itself reports that the session
/// is waiting for a lock, of a row, a transaction, an advisory key or any other
/// kind, and gives the process id of the session that waits. A process id is
/// looked for in the whole server, a name only in the database that `url` names:
/// on a shared server other tests have sessions of the same name.
///
/// ```no_run
/// # async fn example(url: &str, client: tokio_postgres::Client) -> pgonce_testkit::Result<()> {
/// # let pid = 1;
/// pgonce_testkit::wait_until_lock_waited(url, pid).await?;
/// pgonce_testkit::wait_until_lock_waited(url, "second worker").await?;
/// # Ok(())
/// # }
/// ```
pub async fn wait_until_lock_waited(url: &str, session: impl Into<Session>) -> Result<i32> {
    let session = session.into();
    let client = connect(url).await?;
    let awaited = format!("{session:?} to wait for a lock");
    let mut deadline = Deadline::new(awaited, LOCK_WAIT);
    loop {
        if let Some(pid) = waiting(&client, &session).await? {
            return Ok(pid);
        }
        deadline.pause().await?;
    }
}

async fn waiting(client: &Client, session: &Session) -> Result<Option<i32>> {
    let (pid, name) = match session {
        Session::Pid(pid) => (Some(pid), None),
        Session::Application(name) => (None, Some(name)),
    };
    let rows = client
        .query(
            "select pid from pg_catalog.pg_stat_activity
             where wait_event_type = 'Lock' and (pid = $1 or (application_name = $2 and datname = pg_catalog.current_database()))
             limit 1",
            &[&pid, &name],
        )
        .await?;
    Ok(rows.first().map(|row| row.get(0)))
}

/// A short-lived connection. It belongs to the caller's runtime, so nothing in
/// this crate keeps one: a server may be shared by tests that each have their
/// own runtime.
pub(crate) async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
