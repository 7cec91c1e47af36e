//! The names of messages, and a few words on what is in them.

use std::collections::HashMap;

use super::Direction;

const MAX_TEXT: usize = 120;
/// More statements than this on one connection are not remembered by name.
const MOST_STATEMENTS: usize = 1_000;

/// The protocol's name for a message type.
pub(crate) fn name(direction: Direction, kind: u8) -> &'static str {
    match (direction, kind) {
        (Direction::ToServer, b'Q') => "Query",
        (Direction::ToServer, b'P') => "Parse",
        (Direction::ToServer, b'B') => "Bind",
        (Direction::ToServer, b'E') => "Execute",
        (Direction::ToServer, b'D') => "Describe",
        (Direction::ToServer, b'C') => "Close",
        (Direction::ToServer, b'S') => "Sync",
        (Direction::ToServer, b'H') => "Flush",
        (Direction::ToServer, b'F') => "FunctionCall",
        (Direction::ToServer, b'f') => "CopyFail",
        (Direction::ToServer, b'p') => "Password",
        (Direction::ToServer, b'X') => "Terminate",
        (Direction::ToClient, b'R') => "Authentication",
        (Direction::ToClient, b'K') => "BackendKeyData",
        (Direction::ToClient, b'S') => "ParameterStatus",
        (Direction::ToClient, b'Z') => "ReadyForQuery",
        (Direction::ToClient, b'T') => "RowDescription",
        (Direction::ToClient, b't') => "ParameterDescription",
        (Direction::ToClient, b'D') => "DataRow",
        (Direction::ToClient, b'C') => "CommandComplete",
        (Direction::ToClient, b'E') => "ErrorResponse",
        (Direction::ToClient, b'N') => "NoticeResponse",
        (Direction::ToClient, b'A') => "NotificationResponse",
        (Direction::ToClient, b'I') => "EmptyQueryResponse",
        (Direction::ToClient, b'1') => "ParseComplete",
        (Direction::ToClient, b'2') => "BindComplete",
        (Direction::ToClient, b'3') => "CloseComplete",
        (Direction::ToClient, b'n') => "NoData",
        (Direction::ToClient, b's') => "PortalSuspended",
        (Direction::ToClient, b'V') => "FunctionCallResponse",
        (Direction::ToClient, b'G') => "CopyInResponse",
        (Direction::ToClient, b'H') => "CopyOutResponse",
        (Direction::ToClient, b'W') => "CopyBothResponse",
        (_, b'd') => "CopyData",
        (_, b'c') => "CopyDone",
        _ => "Unknown",
    }
}

/// The statements and portals of one connection, by name. Drivers number their statements over
/// the whole process, so that a name says nothing and changes from run to run: a Bind is named by
/// the statement that it binds.
#[derive(Debug, Default)]
pub(crate) struct Statements {
    prepared: HashMap<Vec<u8>, String>,
    bound: HashMap<Vec<u8>, String>,
}

impl Statements {
    /// A few words on a message, the same in every run.
    pub(crate) fn describe(&mut self, direction: Direction, kind: u8, body: &[u8]) -> String {
        match (direction, kind) {
            (Direction::ToServer, b'Q') => short(until_zero(body).0),
            (Direction::ToServer, b'P') => {
                let (name, rest) = until_zero(body);
                let statement = short(until_zero(rest).0);
                remember(&mut self.prepared, name, &statement);
                statement
            }
            (Direction::ToServer, b'B') => {
                let (portal, rest) = until_zero(body);
                let statement = known(&self.prepared, until_zero(rest).0);
                remember(&mut self.bound, portal, &statement);
                statement
            }
            (Direction::ToServer, b'E') => known(&self.bound, until_zero(body).0),
            (Direction::ToServer, b'D' | b'C') => self.of_either(body),
            (Direction::ToClient, b'C') => short(until_zero(body).0),
            (Direction::ToClient, b'E' | b'N') => complaint(body),
            (Direction::ToClient, b'Z') => match body.first() {
                Some(b'I') => "idle".to_owned(),
                Some(b'T') => "in transaction".to_owned(),
                _ => "in failed transaction".to_owned(),
            },
            (Direction::ToClient, b'S') => {
                let (name, rest) = until_zero(body);
                format!("{}={}", short(name), short(until_zero(rest).0))
            }
            _ => String::new(),
        }
    }

    fn of_either(&self, body: &[u8]) -> String {
        match body.split_first() {
            Some((b'S', name)) => known(&self.prepared, until_zero(name).0),
            Some((_, name)) => known(&self.bound, until_zero(name).0),
            None => String::new(),
        }
    }
}

fn remember(names: &mut HashMap<Vec<u8>, String>, name: &[u8], statement: &str) {
    if names.len() < MOST_STATEMENTS || names.contains_key(name) {
        names.insert(name.to_owned(), statement.to_owned());
    }
}

fn known(names: &HashMap<Vec<u8>, String>, name: &[u8]) -> String {
    names.get(name).cloned().unwrap_or_default()
}

/// A zero-ended text and what follows it; all there is, where the end was cut off.
fn until_zero(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

fn complaint(mut body: &[u8]) -> String {
    let (mut code, mut message) = (String::new(), String::new());
    while let Some((&field, rest)) = body.split_first() {
        let (value, next) = until_zero(rest);
        match field {
            b'C' => code = short(value),
            b'M' => message = short(value),
            _ => {}
        }
        body = next;
    }
    format!("{code} {message}")
}

/// One line of bounded length.
fn short(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > MAX_TEXT {
            let kept: String = line.chars().take(MAX_TEXT).collect();
            return format!("{kept}…");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bind_and_an_execute_are_known_by_their_statement() {
        let mut names = Statements::default();
        let mut to_server = |kind, body: &[u8]| names.describe(Direction::ToServer, kind, body);
        assert_eq!(to_server(b'P', b"s17\0select\n  1\0\0\0"), "select 1");
        assert_eq!(to_server(b'D', b"Ss17\0"), "select 1");
        assert_eq!(to_server(b'B', b"\0s17\0\0\0"), "select 1");
        assert_eq!(to_server(b'E', b"\0\0\0\0\0"), "select 1");
        assert_eq!(to_server(b'B', b"\0other\0"), "");
    }

    #[test]
    fn an_error_is_shown_as_its_code_and_message() {
        let body = b"SERROR\0C23505\0Mduplicate key\0\0";
        let text = Statements::default().describe(Direction::ToClient, b'E', body);
        assert_eq!(text, "23505 duplicate key");
    }

    #[test]
    fn a_long_statement_is_cut_between_characters() {
        let long = "ü".repeat(500);
        let text = short(long.as_bytes());
        assert_eq!(text.chars().count(), MAX_TEXT + 1);
    }
}
