//! The stream of a slot: which commits have published.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use super::connection::Connection;
use super::error::WalListenerError;
use super::{SILENCE, Target};
use crate::WakeSignal;

/// How often the position is reported to the server, and asked whether it is there.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// Seconds between the epochs of Unix and PostgreSQL.
const EPOCHS: u64 = 946_684_800;

/// A connection that may listen.
pub(super) struct Listener {
    connection: Connection,
    publication: String,
}

/// What a piece of the stream says.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    /// An event was written, by a transaction whose commit follows.
    Event,
    /// A transaction has committed, and its record ends here.
    Commit(u64),
    /// Everything up to here was sent; the server may want an answer.
    Alive { upto: u64, answer: bool },
    /// Something else.
    Other,
}

impl Listener {
    /// Connects, and finds out what an operator would have to put right. A server that falls silent is waited for no longer
    /// than one that does not answer at all.
    pub(super) async fn open(target: &Target) -> Result<Self, WalListenerError> {
        let connection = Connection::open(target).await?;
        let asked = timeout(target.connect_timeout(), Self::ask(connection, target)).await;
        asked.map_err(WalListenerError::from).flatten()
    }

    async fn ask(mut connection: Connection, target: &Target) -> Result<Self, WalListenerError> {
        let level = connection
            .query("show wal_level")
            .await?
            .unwrap_or_default();
        if level != "logical" {
            let what = format!("wal_level is {level}, not logical");
            return Err(WalListenerError::new("55000", what));
        }
        // A commit would wait for us, as if we kept anything.
        let standbys = connection.query("show synchronous_standby_names").await?;
        if standbys.is_some_and(|names| names.contains('*')) {
            let what = "synchronous_standby_names has a *, so commits would wait for this relay";
            return Err(WalListenerError::new("55P02", what));
        }
        let publication = target.publication.clone();
        let quoted = publication.replace('\'', "''");
        let there = format!(
            "select p.pubname from pg_catalog.pg_publication p where p.pubname operator(pg_catalog.=) '{quoted}'"
        );
        if connection.query(&there).await?.is_none() {
            let what = format!("the database has no publication \"{publication}\"");
            return Err(WalListenerError::new("42704", what));
        }
        Ok(Self {
            connection,
            publication,
        })
    }

    /// Notifies for every commit that has published, until it can no longer.
    pub(super) async fn listen(mut self, signal: &WakeSignal) -> WalListenerError {
        match self.stream(signal).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn stream(
        &mut self,
        signal: &WakeSignal,
    ) -> Result<std::convert::Infallible, WalListenerError> {
        let connection = &mut self.connection;
        let slot = format!("pgonce_tail_{}", Uuid::new_v4().simple());
        // Ends with this connection. Waits until everybody has ended who is writing now.
        connection
            .query(&format!(
                "CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT"
            ))
            .await?;
        let publication = self.publication.replace('"', "\"\"").replace('\'', "''");
        connection.copy_both(&format!(
            "START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '\"{publication}\"')"
        ))
        .await?;
        tracing::info!(slot, "the write-ahead log is followed");
        signal.set_live(true);
        let (mut upto, mut published) = (0, false);
        let (mut last_message, mut next) = (Instant::now(), Instant::now() + REPORT_EVERY);
        loop {
            let mut report = false;
            tokio::select! {
                piece = connection.piece() => {
                    last_message = Instant::now();
                    match read(&piece?) {
                        Piece::Event => published = true,
                        Piece::Commit(end) => {
                            upto = upto.max(end);
                            if std::mem::take(&mut published) {
                                signal.notify();
                            }
                        }
                        Piece::Alive { upto: end, answer } => {
                            upto = upto.max(end);
                            report = answer;
                        }
                        Piece::Other => {}
                    }
                }
                () = sleep_until(next) => report = true,
            }
            let now = Instant::now();
            if now > last_message + SILENCE {
                return Err(WalListenerError::new("08006", "the server is silent"));
            }
            if report || now >= next {
                next = now + REPORT_EVERY;
                connection.say(&place(upto, true)).await?;
            }
        }
    }
}

/// We have got everything up to here, and need none of it again: the events are in the log.
fn place(upto: u64, answer: bool) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now
        .unwrap_or_default()
        .saturating_sub(Duration::from_secs(EPOCHS));
    let now = u64::try_from(now.as_micros()).unwrap_or_default();
    let mut place = vec![b'r'];
    for number in [upto, upto, upto, now] {
        place.extend(number.to_be_bytes());
    }
    place.push(u8::from(answer));
    place
}

fn read(piece: &[u8]) -> Piece {
    let number = |at: usize| {
        let bytes = piece.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_be_bytes(bytes))
    };
    let read = || match *piece.first()? {
        // After three numbers: what pgoutput says. A commit: flags, where it is, where it ends.
        b'w' => match *piece.get(25)? {
            b'I' => Some(Piece::Event),
            b'C' => Some(Piece::Commit(number(35)?)),
            _ => None,
        },
        b'k' => Some(Piece::Alive {
            upto: number(1)?,
            answer: *piece.get(17)? != 0,
        }),
        _ => None,
    };
    read().unwrap_or(Piece::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(by_pgoutput: &[u8]) -> Vec<u8> {
        [b"w".as_slice(), &[7; 24], by_pgoutput].concat()
    }

    #[test]
    fn a_commit_says_where_it_ends() {
        let mut commit = vec![b'C', 0];
        for number in [0x10_u64, 0x20, 0x30] {
            commit.extend(number.to_be_bytes());
        }
        assert_eq!(read(&said(&commit)), Piece::Commit(0x20));
        assert_eq!(read(&said(b"I and a row")), Piece::Event);
        assert_eq!(read(&said(b"R and a table")), Piece::Other);
    }

    #[test]
    fn a_server_that_wants_an_answer_says_so() {
        let alive = |answer| {
            [
                b"k".as_slice(),
                [0, 0, 0, 0, 0, 0, 1, 0].as_slice(),
                &[0; 8],
                &[answer],
            ]
            .concat()
        };
        let upto = 0x100;
        assert_eq!(read(&alive(1)), Piece::Alive { upto, answer: true });
        assert_eq!(
            read(&alive(0)),
            Piece::Alive {
                upto,
                answer: false
            }
        );
    }

    #[test]
    fn what_is_cut_short_says_nothing() {
        for cut in [&b""[..], b"w", b"k\0\0", &said(b"C\0\0"), &said(b"")] {
            assert_eq!(read(cut), Piece::Other);
        }
    }

    #[test]
    fn a_place_is_thirty_four_bytes() {
        let place = place(0x0102, true);
        assert_eq!((place.len(), place[0], place[33]), (34, b'r', 1));
        assert_eq!(place[7..9], [1, 2]);
    }
}
