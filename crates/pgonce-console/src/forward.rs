//! People whom a proxy in front has signed in: who they are, from the headers that it sets.
//!
//! Headers can be written by anybody. They count only in a request that provably came from the proxy: from one of its addresses,
//! with a secret that only it knows, or both where both are configured. Nothing of it is on by default.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::Role;
use crate::access::digest;

/// The header of [`ForwardAuth::secret`].
pub(crate) const SECRET_HEADER: HeaderName = HeaderName::from_static("x-pgonce-proxy-secret");

/// Shorter secrets could be guessed.
const MIN_SECRET: usize = 16;
/// Maximum characters of a name: more would fill the audit.
const MAX_NAME: usize = 200;

/// Sign-in by a proxy in front of the console, such as oauth2-proxy: it sets headers with the user's name and groups, and groups
/// give roles. Who is in none of them gets in nowhere.
///
/// ```
/// use pgonce_console::{Access, ForwardAuth, Role};
///
/// let proxy = ForwardAuth::new()
///     .group("sre", Role::Operator)
///     .group("platform", Role::Admin)
///     .proxy("10.0.0.7")
///     .unwrap();
/// let access = Access::local().forward(proxy).unwrap();
/// assert!(access.may_listen_on("0.0.0.0:7650".parse().unwrap()).is_ok());
/// // Anybody could write the headers.
/// assert!(Access::local().forward(ForwardAuth::new().group("sre", Role::Operator)).is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct ForwardAuth {
    user: HeaderName,
    groups: HeaderName,
    roles: Vec<(String, Role)>,
    proxies: Vec<IpNet>,
    secret: Option<Secret>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Secret {
    digest: [u8; 32],
    is_short: bool,
}

impl Default for ForwardAuth {
    fn default() -> Self {
        Self {
            user: HeaderName::from_static("x-forwarded-user"),
            groups: HeaderName::from_static("x-forwarded-groups"),
            roles: Vec::new(),
            proxies: Vec::new(),
            secret: None,
        }
    }
}

/// What headers say about who asks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// Nothing that counts: it did not come from the proxy, or the proxy names nobody.
    Nobody,
    /// The proxy names somebody who may do nothing here.
    NoRole,
    Known(String, Role),
}

impl ForwardAuth {
    /// The headers `X-Forwarded-User` and `X-Forwarded-Groups`, no group and no proxy.
    pub fn new() -> Self {
        Self::default()
    }

    /// Other headers for the name of the user and for the groups, which are separated by commas.
    pub fn headers(mut self, user: HeaderName, groups: HeaderName) -> Self {
        (self.user, self.groups) = (user, groups);
        self
    }

    /// The role of a group's members. Who is in many groups has the greatest of their roles.
    pub fn group(mut self, group: impl Into<String>, role: Role) -> Self {
        self.roles.push((group.into(), role));
        self
    }

    /// An address that only the proxy has, such as `10.0.0.7`, or a network of them, such as `10.1.0.0/16`. The router must know where
    /// requests come from: serve it with axum's `into_make_service_with_connect_info::<SocketAddr>()`. Otherwise nobody is let in.
    pub fn proxy(mut self, network: &str) -> Result<Self, String> {
        let parsed = network
            .parse()
            .or_else(|_| network.parse::<IpAddr>().map(IpNet::from));
        self.proxies.push(parsed.map_err(|_| {
            format!(
                "{network:?} is neither an address nor a network, such as 10.0.0.7 or 10.1.0.0/16"
            )
        })?);
        Ok(self)
    }

    /// What the proxy sends as `X-Pgonce-Proxy-Secret`, 16 characters or more. Where addresses are given too, both must fit.
    pub fn secret(mut self, secret: &str) -> Self {
        self.secret = Some(Secret {
            digest: digest(secret),
            is_short: secret.len() < MIN_SECRET,
        });
        self
    }

    /// What could be spoofed, or lets nobody in, is refused. The error says what to do.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.roles.is_empty() {
            return Err(
                "no group has a role, so nobody could get in: give groups and their roles"
                    .to_owned(),
            );
        }
        if self.user == self.groups {
            return Err("one header cannot have both the user and the groups".to_owned());
        }
        match &self.secret {
            Some(secret) if secret.is_short => Err(format!(
                "the secret of the proxy needs {MIN_SECRET} characters or more"
            )),
            Some(_) => Ok(()),
            None if self.proxies.is_empty() => Err(
                "anybody could write the headers of the proxy: give its addresses, or a secret that only it knows"
                    .to_owned(),
            ),
            None if self.proxies.iter().any(has_loopback) => Err(
                "every program and every page in a browser on this machine could write the headers of a proxy on loopback: \
                 give a secret too"
                    .to_owned(),
            ),
            None => Ok(()),
        }
    }

    /// Who sent these headers, from this address.
    pub(crate) fn who(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Forwarded {
        let Some(user) = only(headers, &self.user) else {
            return Forwarded::Nobody;
        };
        if !self.is_proxy(headers, peer) {
            tracing::warn!(
                peer = peer.map(tracing::field::display),
                "console: a request names its user, and did not come from the proxy; the name was ignored"
            );
            return Forwarded::Nobody;
        }
        let name = std::str::from_utf8(user).map_or("", str::trim);
        if name.is_empty() || name.chars().count() > MAX_NAME || name.contains(char::is_control) {
            return Forwarded::Nobody;
        }
        let groups = headers.get_all(&self.groups).into_iter();
        let role = groups
            .filter_map(|value| std::str::from_utf8(value.as_bytes()).ok())
            .flat_map(|value| value.split(','))
            .filter_map(|group| self.role(group.trim()))
            .max();
        match role {
            Some(role) => Forwarded::Known(name.to_owned(), role),
            None => Forwarded::NoRole,
        }
    }

    fn role(&self, group: &str) -> Option<Role> {
        let roles = self.roles.iter().filter(|(name, _)| name == group);
        roles.map(|(_, role)| *role).max()
    }

    fn is_proxy(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> bool {
        let knows_secret = match &self.secret {
            None => !self.proxies.is_empty(),
            Some(secret) => only(headers, &SECRET_HEADER)
                .and_then(|given| std::str::from_utf8(given).ok())
                .is_some_and(|given| digest(given) == secret.digest),
        };
        let is_there = self.proxies.is_empty()
            || peer.is_some_and(|peer| {
                let peer = peer.to_canonical();
                self.proxies.iter().any(|network| network.contains(&peer))
            });
        knows_secret && is_there
    }
}

/// The value of a header that is there once. Of two, one was not written by the proxy.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).into_iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Some(value.as_bytes()),
        _ => None,
    }
}

fn has_loopback(network: &IpNet) -> bool {
    let loopback = [
        IpNet::from(IpAddr::from(Ipv6Addr::LOCALHOST)),
        // All of 127.0.0.0/8 is this machine.
        IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
    ];
    loopback
        .iter()
        .any(|own| network.contains(own) || own.contains(network))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "a-secret-of-the-proxy";
    const NAME_OF_SECRET: &str = "x-pgonce-proxy-secret";

    fn auth() -> ForwardAuth {
        ForwardAuth::new()
            .group("staff", Role::Viewer)
            .group("sre", Role::Operator)
            .group("platform", Role::Admin)
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    const ADA: [(&str, &str); 2] = [("X-Forwarded-User", "ada"), ("X-Forwarded-Groups", "sre")];

    fn ada() -> Forwarded {
        Forwarded::Known("ada".to_owned(), Role::Operator)
    }

    #[test]
    fn what_could_be_spoofed_is_no_configuration() {
        let wrong = [
            auth(),
            ForwardAuth::new().secret(SECRET),
            auth().secret("short"),
            auth().secret(""),
            auth().proxy("127.0.0.1/32").unwrap(),
            auth().proxy("127.9.0.0/16").unwrap(),
            auth().proxy("::1/128").unwrap(),
            auth().proxy("0.0.0.0/0").unwrap(),
            auth().proxy("::/0").unwrap(),
            auth()
                .proxy("10.0.0.0/8")
                .unwrap()
                .proxy("127.0.0.1/32")
                .unwrap(),
            auth().secret(SECRET).headers(
                HeaderName::from_static("remote-user"),
                HeaderName::from_static("remote-user"),
            ),
        ];
        for one in wrong {
            assert!(one.check().is_err(), "{one:?}");
        }
        for one in [
            auth().secret(SECRET),
            auth().proxy("10.0.0.0/8").unwrap(),
            auth().proxy("127.0.0.1/32").unwrap().secret(SECRET),
        ] {
            assert_eq!(one.check(), Ok(()), "{one:?}");
        }
    }

    #[test]
    fn headers_count_from_the_addresses_of_the_proxy_only() {
        let auth = auth()
            .proxy("10.1.0.0/16")
            .unwrap()
            .proxy("fd00::7/128")
            .unwrap();
        let from = |peer: &str| auth.who(&headers(&ADA), Some(peer.parse().unwrap()));
        for peer in ["10.1.2.3", "::ffff:10.1.2.3", "fd00::7"] {
            assert_eq!(from(peer), ada(), "{peer}");
        }
        for peer in ["10.2.0.1", "127.0.0.1", "::1", "fd00::8", "0.0.0.0"] {
            assert_eq!(from(peer), Forwarded::Nobody, "{peer}");
        }
        // An application that does not say where requests come from.
        assert_eq!(auth.who(&headers(&ADA), None), Forwarded::Nobody);
    }

    #[test]
    fn headers_count_with_the_secret_only_and_with_both_where_both_are_given() {
        let there = Some(IpAddr::from([10, 0, 0, 7]));
        let (by_secret, by_both) = (
            auth().secret(SECRET),
            auth().secret(SECRET).proxy("10.0.0.7/32").unwrap(),
        );
        let with = |secret: &'static str| headers(&[ADA[0], ADA[1], (NAME_OF_SECRET, secret)]);
        for peer in [there, None, Some(IpAddr::from([192, 0, 2, 1]))] {
            assert_eq!(by_secret.who(&with(SECRET), peer), ada());
            assert_eq!(
                by_secret.who(&with("another-long-secret"), peer),
                Forwarded::Nobody
            );
            assert_eq!(by_secret.who(&with(""), peer), Forwarded::Nobody);
            assert_eq!(by_secret.who(&headers(&ADA), peer), Forwarded::Nobody);
            let expected = if peer == there {
                ada()
            } else {
                Forwarded::Nobody
            };
            assert_eq!(by_both.who(&with(SECRET), peer), expected);
        }
        assert_eq!(by_both.who(&headers(&ADA), there), Forwarded::Nobody);
        let twice = (NAME_OF_SECRET, SECRET);
        let twice = headers(&[ADA[0], ADA[1], twice, twice]);
        assert_eq!(by_secret.who(&twice, there), Forwarded::Nobody);
    }

    #[test]
    fn groups_give_the_greatest_role_and_an_unknown_one_gives_none() {
        let auth = auth().secret(SECRET);
        let of = |groups: &[&'static str]| {
            let groups = groups.iter().map(|groups| ("X-Forwarded-Groups", *groups));
            let own = [ADA[0], (NAME_OF_SECRET, SECRET)];
            auth.who(
                &headers(&own.into_iter().chain(groups).collect::<Vec<_>>()),
                None,
            )
        };
        let known = |role| Forwarded::Known("ada".to_owned(), role);
        assert_eq!(of(&["staff"]), known(Role::Viewer));
        assert_eq!(of(&["staff, sre ,cooks"]), known(Role::Operator));
        assert_eq!(of(&["staff", "platform,sre"]), known(Role::Admin));
        for none in [&[][..], &[""], &["cooks"], &["SRE"], &["sre2"], &["admin"]] {
            assert_eq!(of(none), Forwarded::NoRole, "{none:?}");
        }
    }

    #[test]
    fn a_name_that_is_missing_doubled_or_no_name_is_nobody() {
        let auth = auth().secret(SECRET);
        let long = "x".repeat(MAX_NAME + 1);
        for users in [
            &[][..],
            &[""],
            &["  "],
            &["ada", "ada"],
            &["ada", "bob"],
            &[long.as_str()],
        ] {
            let mut pairs = vec![ADA[1], (NAME_OF_SECRET, SECRET)];
            pairs.extend(users.iter().map(|user| ("X-Forwarded-User", *user)));
            assert_eq!(
                auth.who(&headers(&pairs), None),
                Forwarded::Nobody,
                "{users:?}"
            );
        }
        let mut raw = headers(&[ADA[1], (NAME_OF_SECRET, SECRET)]);
        let mut named = |bytes: &[u8]| {
            raw.insert(
                "x-forwarded-user",
                axum::http::HeaderValue::from_bytes(bytes).unwrap(),
            );
            auth.who(&raw, None)
        };
        assert_eq!(
            named("Zo\u{eb}".as_bytes()),
            Forwarded::Known("Zo\u{eb}".to_owned(), Role::Operator)
        );
        assert_eq!(named(b"\xff"), Forwarded::Nobody);
        assert_eq!(named("a\u{85}b".as_bytes()), Forwarded::Nobody);
        assert_eq!(named(b"a\tb"), Forwarded::Nobody);
    }
}
