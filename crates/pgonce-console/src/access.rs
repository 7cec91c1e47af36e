//! Who may see and do what.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::forward::{ForwardAuth, Forwarded};

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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Access {
    tokens: Vec<Token>,
    forward: Option<ForwardAuth>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
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

    /// Lets those in whom a proxy in front has signed in. From then on nobody gets in without it, or without a token.
    /// Refused where the headers of the proxy could be spoofed: see [`ForwardAuth`].
    pub fn forward(mut self, proxy: ForwardAuth) -> Result<Self, String> {
        proxy.check()?;
        self.forward = Some(proxy);
        Ok(self)
    }

    /// Whether the console may listen on this address: without authentication only on loopback. The error says what to do.
    pub fn may_listen_on(&self, address: SocketAddr) -> Result<(), String> {
        if self.is_open() && !address.ip().to_canonical().is_loopback() {
            return Err(format!(
                "the console on {address} could be reached by other machines, and has no authentication: \
                 give tokens or a proxy that signs people in, or listen on 127.0.0.1"
            ));
        }
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.tokens.is_empty() && self.forward.is_none()
    }
}

pub(crate) fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Who asks, and the proof that a form of ours is theirs.
#[derive(Debug, Clone)]
pub(crate) struct Who {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// What a form must send back. Nothing where the request itself proves it: it has a token in its header.
    pub(crate) csrf: Option<String>,
    /// Whether there is a login of ours to end.
    pub(crate) session: bool,
}

/// How long a login lasts.
const SESSION: Duration = Duration::from_secs(12 * 3600);
const MAX_SESSIONS: usize = 1000;
pub(crate) const COOKIE: &str = "pgonce_session";

#[derive(Debug)]
pub(crate) struct Guard {
    access: Access,
    sessions: Mutex<HashMap<String, (Who, Instant)>>,
    /// What forms of those send back who have no session of ours, or what that is made from.
    csrf: String,
}

/// Why a request is turned away.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Nobody is known.
    Login,
    /// Nobody is known, and only the proxy in front could say who it is.
    NotByProxy,
    /// The proxy says who it is, and no group of theirs has a role.
    NoRole,
    /// A page elsewhere sent it, or a name leads here that is not this machine's.
    Foreign,
}

impl Guard {
    pub(crate) fn new(access: Access) -> Self {
        Self {
            access,
            sessions: Mutex::default(),
            csrf: random(),
        }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// Who sent these headers, from this address.
    pub(crate) fn who(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<Who, Refused> {
        let value =
            |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        if let (Some(origin), Some(host)) = (value(header::ORIGIN), value(header::HOST))
            && origin.split_once("://").map(|(_, rest)| rest) != Some(host)
        {
            return Err(Refused::Foreign);
        }
        if self.access.is_open() {
            // A page elsewhere can point a name of its own at this machine; the browser then sends that name.
            return match value(header::HOST).is_some_and(is_local) {
                true => Ok(Who {
                    name: "local".to_owned(),
                    role: Role::Admin,
                    csrf: Some(self.csrf.clone()),
                    session: false,
                }),
                false => Err(Refused::Foreign),
            };
        }
        // Before tokens: the proxy may pass on a token of its own, which is none of ours.
        match self
            .access
            .forward
            .as_ref()
            .map(|proxy| proxy.who(headers, peer))
        {
            Some(Forwarded::Known(name, role)) => {
                return Ok(Who {
                    csrf: Some(self.csrf_of(&name)),
                    name,
                    role,
                    session: false,
                });
            }
            Some(Forwarded::NoRole) => return Err(Refused::NoRole),
            Some(Forwarded::Nobody) if self.access.tokens.is_empty() => {
                return Err(Refused::NotByProxy);
            }
            Some(Forwarded::Nobody) | None => {}
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

    /// The proof for forms of somebody whom the proxy knows. Hashed twice: a single hash could be extended to that of a longer name.
    fn csrf_of(&self, name: &str) -> String {
        let inner = Sha256::digest(format!("{} {name}", self.csrf));
        let mut outer = Sha256::new_with_prefix(&self.csrf);
        outer.update(inner);
        let bytes = outer.finalize();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
            session: false,
        })
    }

    /// A session for who knows a token; its name for the cookie.
    pub(crate) fn login(&self, token: &str) -> Option<String> {
        let mut who = self.known(token)?;
        (who.csrf, who.session) = (Some(random()), true);
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
                guard.who(&headers(&[(header::HOST, host)]), None).is_ok(),
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
                guard
                    .who(&headers(&[(header::HOST, host)]), None)
                    .unwrap_err(),
                Refused::Foreign,
                "{host}"
            );
        }
        let elsewhere = [
            (header::HOST, "127.0.0.1:7650"),
            (header::ORIGIN, "https://evil.example"),
        ];
        assert_eq!(
            guard.who(&headers(&elsewhere), None).unwrap_err(),
            Refused::Foreign
        );
        let here = [
            (header::HOST, "127.0.0.1:7650"),
            (header::ORIGIN, "http://127.0.0.1:7650"),
        ];
        assert!(guard.who(&headers(&here), None).is_ok());
    }

    #[test]
    fn a_token_or_its_session_lets_in_and_nothing_else_does() {
        let guard = Guard::new(Access::local().token("ada", Role::Operator, "secret"));
        let who =
            |name: header::HeaderName, value: &str| guard.who(&headers(&[(name, value)]), None);
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

    #[test]
    fn who_comes_by_the_proxy_has_a_proof_of_their_own_and_others_need_a_token() {
        let proxy = || {
            ForwardAuth::new()
                .group("sre", Role::Operator)
                .secret("a-secret-of-the-proxy")
        };
        let named = |name: &'static str| {
            let headers: [(&str, &str); 3] = [
                ("x-forwarded-user", name),
                ("x-forwarded-groups", "sre"),
                ("x-pgonce-proxy-secret", "a-secret-of-the-proxy"),
            ];
            let headers =
                headers.map(|(name, value)| (header::HeaderName::from_static(name), value));
            headers.to_vec()
        };
        let guard = Guard::new(Access::local().forward(proxy()).unwrap());
        let ada = guard.who(&headers(&named("ada")), None).unwrap();
        let again = guard.who(&headers(&named("ada")), None).unwrap();
        let bob = guard.who(&headers(&named("bob")), None).unwrap();
        assert!((ada.name.as_str(), ada.role, ada.session) == ("ada", Role::Operator, false));
        assert!(ada.csrf.is_some() && ada.csrf == again.csrf && ada.csrf != bob.csrf);
        assert_eq!(
            guard.who(&headers(&[]), None).unwrap_err(),
            Refused::NotByProxy
        );
        // A name is not enough, on this machine neither.
        let spoofed = [
            (header::HOST, "127.0.0.1"),
            (header::HeaderName::from_static("x-forwarded-user"), "ada"),
        ];
        assert_eq!(
            guard.who(&headers(&spoofed), None).unwrap_err(),
            Refused::NotByProxy
        );
        let mut elsewhere = named("ada");
        elsewhere.extend([
            (header::HOST, "console.example"),
            (header::ORIGIN, "https://evil.example"),
        ]);
        assert_eq!(
            guard.who(&headers(&elsewhere), None).unwrap_err(),
            Refused::Foreign
        );

        let both = Access::local()
            .token("robot", Role::Viewer, "secret")
            .forward(proxy())
            .unwrap();
        let guard = Guard::new(both);
        let token = (header::AUTHORIZATION, "Bearer secret");
        assert_eq!(
            guard
                .who(&headers(std::slice::from_ref(&token)), None)
                .unwrap()
                .name,
            "robot"
        );
        assert_eq!(guard.who(&headers(&[]), None).unwrap_err(), Refused::Login);
        let mut passed_on = named("ada");
        passed_on.push((header::AUTHORIZATION, "Bearer of-the-provider"));
        assert_eq!(guard.who(&headers(&passed_on), None).unwrap().name, "ada");
    }
}
