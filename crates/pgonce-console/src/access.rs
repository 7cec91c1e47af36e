//! Who may see and do what.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// What somebody may do in the console. The greater may do all that the lesser may.
///
/// ```
/// use pgonce_console::Role;
/// assert!(Role::Admin > Role::Viewer);
/// assert_eq!("operator".parse(), Ok(Role::Operator));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Sees everything but answers and payloads.
    Viewer,
    /// Sees answers and payloads too, and acts on intents, events and messages.
    Operator,
    /// Also does what can open a second effect: forces an act, or evicts a record.
    Admin,
}

impl Role {
    /// The role in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Viewer, Self::Operator, Self::Admin]
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| format!("{text:?} is no role: viewer, operator or admin"))
    }
}

/// How people are known to the console.
///
/// ```
/// use pgonce_console::{Access, Role};
/// let open = Access::local();
/// assert!(open.may_listen_on("127.0.0.1:7650".parse().unwrap()).is_ok());
/// assert!(open.may_listen_on("0.0.0.0:7650".parse().unwrap()).is_err());
/// let guarded = Access::local().token("ada", Role::Operator, "a-long-random-token");
/// assert!(guarded.may_listen_on("0.0.0.0:7650".parse().unwrap()).is_ok());
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Access {
    tokens: Vec<Token>,
}

#[derive(Debug, Clone)]
struct Token {
    name: String,
    role: Role,
    digest: [u8; 32],
}

impl Access {
    /// No authentication: everybody on this machine is an admin, and nobody else can connect.
    pub fn local() -> Self {
        Self::default()
    }

    /// Lets somebody, or a program, in by a token. From the first token on nobody gets in without one.
    pub fn token(mut self, name: impl Into<String>, role: Role, token: &str) -> Self {
        self.tokens.push(Token {
            name: name.into(),
            role,
            digest: digest(token),
        });
        self
    }

    /// Whether the console may listen on this address: without a token only on loopback. The error says what to do.
    pub fn may_listen_on(&self, address: SocketAddr) -> Result<(), String> {
        if self.tokens.is_empty() && !address.ip().to_canonical().is_loopback() {
            return Err(format!(
                "the console on {address} could be reached by other machines, and has no authentication: \
                 give tokens, or listen on 127.0.0.1"
            ));
        }
        Ok(())
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Who asks, and the proof that a form of ours is theirs.
#[derive(Debug, Clone)]
pub(crate) struct Who {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// What a form must send back. Nothing where the request itself proves it: it has a token in its header.
    pub(crate) csrf: Option<String>,
}

/// How long a login lasts.
const SESSION: Duration = Duration::from_secs(12 * 3600);
const MAX_SESSIONS: usize = 1000;
pub(crate) const COOKIE: &str = "pgonce_session";

#[derive(Debug)]
pub(crate) struct Guard {
    access: Access,
    sessions: Mutex<HashMap<String, (Who, Instant)>>,
    local_csrf: String,
}

/// Why a request is turned away.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Nobody is known.
    Login,
    /// A page elsewhere sent it, or a name leads here that is not this machine's.
    Foreign,
}

impl Guard {
    pub(crate) fn new(access: Access) -> Self {
        Self {
            access,
            sessions: Mutex::default(),
            local_csrf: random(),
        }
    }

    /// Who sent these headers.
    pub(crate) fn who(&self, headers: &HeaderMap) -> Result<Who, Refused> {
        let value =
            |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        if let (Some(origin), Some(host)) = (value(header::ORIGIN), value(header::HOST))
            && origin.split_once("://").map(|(_, rest)| rest) != Some(host)
        {
            return Err(Refused::Foreign);
        }
        if self.access.tokens.is_empty() {
            // A page elsewhere can point a name of its own at this machine; the browser then sends that name.
            return match value(header::HOST).is_some_and(is_local) {
                true => Ok(Who {
                    name: "local".to_owned(),
                    role: Role::Admin,
                    csrf: Some(self.local_csrf.clone()),
                }),
                false => Err(Refused::Foreign),
            };
        }
        if let Some(token) =
            value(header::AUTHORIZATION).and_then(|text| text.strip_prefix("Bearer "))
        {
            return self.known(token).ok_or(Refused::Login);
        }
        let cookies = headers.get_all(header::COOKIE).into_iter();
        let cookies = cookies
            .filter_map(|value| value.to_str().ok())
            .flat_map(|text| text.split("; "));
        let session = cookies
            .filter_map(|pair| pair.split_once('='))
            .find(|(name, _)| *name == COOKIE);
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let found = session.and_then(|(_, id)| sessions.get(id));
        match found {
            Some((who, until)) if *until > Instant::now() => Ok(who.clone()),
            _ => Err(Refused::Login),
        }
    }

    fn known(&self, token: &str) -> Option<Who> {
        let given = digest(token);
        let found = self
            .access
            .tokens
            .iter()
            .find(|known| known.digest == given)?;
        Some(Who {
            name: found.name.clone(),
            role: found.role,
            csrf: None,
        })
    }

    /// A session for who knows a token; its name for the cookie.
    pub(crate) fn login(&self, token: &str) -> Option<String> {
        let mut who = self.known(token)?;
        who.csrf = Some(random());
        let (id, now) = (random(), Instant::now());
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, (_, until)| *until > now);
        if sessions.len() >= MAX_SESSIONS {
            let oldest = sessions
                .iter()
                .min_by_key(|(_, (_, until))| *until)
                .map(|(id, _)| id.clone());
            oldest.map(|id| sessions.remove(&id));
        }
        sessions.insert(id.clone(), (who, now + SESSION));
        Some(id)
    }

    pub(crate) fn logout(&self, who: &Who) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, (other, _)| other.csrf != who.csrf);
    }
}

fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost"
        || name
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// 244 random bits.
fn random() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.clone(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn without_tokens_only_this_machine_is_let_in() {
        let guard = Guard::new(Access::local());
        for host in ["127.0.0.1:7650", "localhost", "localhost:1", "[::1]:7650"] {
            assert!(
                guard.who(&headers(&[(header::HOST, host)])).is_ok(),
                "{host}"
            );
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example:7650",
            "10.0.0.1",
            "",
        ] {
            assert_eq!(
                guard.who(&headers(&[(header::HOST, host)])).unwrap_err(),
                Refused::Foreign,
                "{host}"
            );
        }
        let elsewhere = [
            (header::HOST, "127.0.0.1:7650"),
            (header::ORIGIN, "https://evil.example"),
        ];
        assert_eq!(
            guard.who(&headers(&elsewhere)).unwrap_err(),
            Refused::Foreign
        );
        let here = [
            (header::HOST, "127.0.0.1:7650"),
            (header::ORIGIN, "http://127.0.0.1:7650"),
        ];
        assert!(guard.who(&headers(&here)).is_ok());
    }

    #[test]
    fn a_token_or_its_session_lets_in_and_nothing_else_does() {
        let guard = Guard::new(Access::local().token("ada", Role::Operator, "secret"));
        let who = |name: header::HeaderName, value: &str| guard.who(&headers(&[(name, value)]));
        assert_eq!(who(header::HOST, "127.0.0.1").unwrap_err(), Refused::Login);
        assert_eq!(
            who(header::AUTHORIZATION, "Bearer wrong").unwrap_err(),
            Refused::Login
        );
        assert_eq!(
            who(header::AUTHORIZATION, "Bearer secret").unwrap().role,
            Role::Operator
        );
        assert!(guard.login("wrong").is_none());
        let id = guard.login("secret").unwrap();
        let known = who(header::COOKIE, &format!("a=b; {COOKIE}={id}")).unwrap();
        assert!(known.name == "ada" && known.csrf.is_some());
        guard.logout(&known);
        assert_eq!(
            who(header::COOKIE, &format!("{COOKIE}={id}")).unwrap_err(),
            Refused::Login
        );
    }
}
