//! PostgreSQL's wire protocol, as far as counting and naming its messages needs it.

mod text;

use std::fmt;

use serde::{Deserialize, Serialize};

pub(crate) use self::text::{Statements, name};

/// Type byte and length.
const HEADER: usize = 5;
/// As much of a message as is read before it is named; the rest flows through.
const PREFIX: usize = 1024;
/// PostgreSQL's own limit for what a client may send before it has a session.
const MAX_START_UP: usize = 10_000;

const CANCEL: u32 = 80_877_102;
const SSL: u32 = 80_877_103;
const GSS_ENCRYPTION: u32 = 80_877_104;

/// Which way a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

impl Direction {
    /// `s` or `c`, as in the short text of a fault.
    pub(crate) fn letter(self) -> char {
        match self {
            Self::ToServer => 's',
            Self::ToClient => 'c',
        }
    }
}

/// One message that passed a proxy. Its text is `c0:s3 Query commit`: connection 0, message 3 on
/// its way to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Which connection, in the order in which the proxy accepted them, from 0.
    pub connection: u64,
    /// Which way.
    pub direction: Direction,
    /// Which message that way, from 0, counted after the session was ready for its first query.
    pub number: u64,
    /// The protocol's type byte, such as `Q`.
    pub kind: char,
    /// The protocol's name for it, such as `Query`.
    pub name: &'static str,
    /// A summary in a few words: the statement, the command's tag, the error's code.
    pub text: String,
}

impl fmt::Display for Message {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = self.direction.letter();
        write!(
            out,
            "c{}:{letter}{} {}",
            self.connection, self.number, self.name
        )?;
        if !self.text.is_empty() {
            write!(out, " {}", self.text)?;
        }
        Ok(())
    }
}

/// The beginning of a message in a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    pub(crate) kind: u8,
    /// All bytes of the message, type and length included.
    pub(crate) total: usize,
    /// What came after the header, cut off after some hundred bytes.
    pub(crate) body: &'a [u8],
}

/// The two ends do not speak the protocol that we know.
#[derive(Debug)]
pub(crate) struct OutOfStep;

/// The message at the front of `buffer`, once enough of it is there to name it.
pub(crate) fn head(buffer: &[u8]) -> Result<Option<Head<'_>>, OutOfStep> {
    let Some((&[kind, a, b, c, d], _)) = buffer.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let length = length(u32::from_be_bytes([a, b, c, d]))?;
    if length < 4 {
        return Err(OutOfStep);
    }
    let total = length + 1;
    let body = buffer.get(HEADER..total.min(PREFIX));
    Ok(body.map(|body| Head { kind, total, body }))
}

/// What a client says before it has a session; these packets have no type byte.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Asks for encryption, and is refused it.
    Encryption,
    /// Asks for another session's query to be cancelled, and expects no answer.
    Cancel,
    /// Asks for a session.
    Session,
}

/// The packet at the front of `buffer` and its length, once its kind is known.
pub(crate) fn opening(buffer: &[u8]) -> Result<Option<(Opening, usize)>, OutOfStep> {
    let Some((&[a, b, c, d, e, f, g, h], _)) = buffer.split_first_chunk::<8>() else {
        return Ok(None);
    };
    let length = length(u32::from_be_bytes([a, b, c, d]))?;
    if !(8..=MAX_START_UP).contains(&length) {
        return Err(OutOfStep);
    }
    if buffer.len() < length {
        return Ok(None);
    }
    let opening = match u32::from_be_bytes([e, f, g, h]) {
        SSL | GSS_ENCRYPTION => Opening::Encryption,
        CANCEL => Opening::Cancel,
        _ => Opening::Session,
    };
    Ok(Some((opening, length)))
}

fn length(given: u32) -> Result<usize, OutOfStep> {
    usize::try_from(given).map_err(|_| OutOfStep)
}

/// The process id in a BackendKeyData message.
pub(crate) fn backend(body: &[u8]) -> Option<i32> {
    body.first_chunk().map(|bytes| i32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_named_as_soon_as_its_beginning_is_there() {
        let mut message = vec![b'Q', 0, 0, 0, 8];
        assert!(head(&message).unwrap().is_none());
        message.extend(b"go\0");
        assert!(head(&message).unwrap().is_none());
        message.extend(b"\0next");
        let found = head(&message).unwrap().unwrap();
        assert_eq!(
            (found.kind, found.total, found.body),
            (b'Q', 9, &b"go\0\0"[..])
        );
    }

    #[test]
    fn a_large_message_is_named_by_its_first_bytes() {
        let mut message = vec![b'd', 0x3f, 0, 0, 0];
        message.extend([7; PREFIX]);
        let found = head(&message).unwrap().unwrap();
        assert_eq!(found.total, 0x3f00_0001);
        assert_eq!(found.body.len(), PREFIX - HEADER);
    }

    #[test]
    fn nonsense_is_noticed() {
        assert!(head(&[b'Q', 0, 0, 0, 3]).is_err());
        assert!(opening(&[0, 1, 0, 0, 0, 3, 0, 0]).is_err());
        assert!(opening(&[0, 0, 0, 7, 0, 3, 0, 0]).is_err());
    }

    #[test]
    fn the_openings_are_distinguished() {
        let packet = |code: u32| [8_u32.to_be_bytes(), code.to_be_bytes()].concat();
        for (code, expected) in [
            (SSL, Opening::Encryption),
            (GSS_ENCRYPTION, Opening::Encryption),
            (CANCEL, Opening::Cancel),
            (196_608, Opening::Session),
        ] {
            assert_eq!(opening(&packet(code)).unwrap(), Some((expected, 8)));
        }
    }
}
