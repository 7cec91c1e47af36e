//! Who may use the console, from the settings: tokens, and a proxy that signs people in.

use axum::http::HeaderName;
use pgonce_console::{Access, ForwardAuth};

use super::settings::Found;
use crate::exit::Result;

/// Shorter tokens could be guessed.
const MIN_TOKEN: usize = 16;

impl Found {
    pub(super) fn access(&self) -> Result<Access> {
        let mut access = Access::local();
        for token in self.list("console_tokens") {
            let mut parts = token.splitn(3, ':');
            let (name, role, secret) = (
                parts.next().unwrap_or_default(),
                parts.next().unwrap_or_default(),
                parts.next().unwrap_or_default(),
            );
            // What stands where a role should may be the token.
            let role = role.parse().ok();
            let Some(role) = role.filter(|_| !name.is_empty() && secret.len() >= MIN_TOKEN) else {
                return Err(self.bad(
                    "console_tokens",
                    "write name:role:token, with a role of viewer, operator or admin and tokens of 16 characters or more",
                ));
            };
            access = access.token(name, role, secret);
        }
        match self.forward()? {
            // What could be spoofed is refused.
            Some(proxy) => access
                .forward(proxy)
                .map_err(|why| self.bad("console_groups", why)),
            None => Ok(access),
        }
    }

    fn forward(&self) -> Result<Option<ForwardAuth>> {
        let groups = self.list("console_groups");
        if groups.is_empty() {
            let alone = ["console_proxies", "console_proxy_secret"];
            return match alone.iter().find(|name| !self.value(name).is_empty()) {
                Some(name) => Err(self.bad(
                    name,
                    "no group has a role: give console_groups too, such as sre=operator",
                )),
                None => Ok(None),
            };
        }
        let header = |name: &'static str| {
            HeaderName::from_bytes(self.value(name).as_bytes())
                .map_err(|_| self.bad(name, "it is no name of a header"))
        };
        let mut proxy = ForwardAuth::new().headers(
            header("console_user_header")?,
            header("console_groups_header")?,
        );
        for given in groups {
            // A group's name may have the sign in it, a role has not.
            let (group, role) = given.rsplit_once('=').unwrap_or((&given, ""));
            let role = role
                .trim()
                .parse()
                .map_err(|error: String| self.bad("console_groups", error))?;
            if group.trim().is_empty() {
                return Err(self.bad("console_groups", "write group=role"));
            }
            proxy = proxy.group(group.trim(), role);
        }
        for network in self.list("console_proxies") {
            proxy = proxy
                .proxy(&network)
                .map_err(|why| self.bad("console_proxies", why))?;
        }
        match self.value("console_proxy_secret") {
            "" => Ok(Some(proxy)),
            secret => Ok(Some(proxy.secret(secret))),
        }
    }
}
