use std::net::SocketAddr;

use crate::{Error, Result};

/// A database's address in parts, so that it can be led through a proxy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    before: String,
    host: String,
    after: String,
}

impl Target {
    /// Reads `postgres://user:password@host:port/database?option=value`.
    pub(super) fn read(url: &str) -> Result<Self> {
        let wrong = || Error::Io {
            what: "find the server in the database's address".to_owned(),
            source: std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "expected postgres://user@host:port/database with one host, and no unix socket",
            ),
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(wrong());
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, after) = rest.split_at(end);
        let (login, host) = match authority.rsplit_once('@') {
            Some((login, host)) => (format!("{login}@"), host),
            None => (String::new(), authority),
        };
        if host.is_empty() || host.contains([',', '%']) {
            return Err(wrong());
        }
        let has_port = match host.rsplit_once(':') {
            Some((name, _)) => !name.contains(':') || name.ends_with(']'),
            None => false,
        };
        let host = if has_port {
            host.to_owned()
        } else {
            format!("{host}:5432")
        };
        Ok(Self {
            before: format!("{scheme}://{login}"),
            host,
            after: after.to_owned(),
        })
    }

    /// Host and port.
    pub(super) fn server(&self) -> &str {
        &self.host
    }

    /// The same database, through the proxy.
    pub(super) fn through(&self, proxy: SocketAddr) -> String {
        format!("{}{proxy}{}", self.before, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_led_elsewhere_with_all_else_kept() {
        let proxy = SocketAddr::from(([127, 0, 0, 1], 7));
        for (url, server, through) in [
            (
                "postgres://me:p@ss@db.local:1/x?a=b",
                "db.local:1",
                "postgres://me:p@ss@127.0.0.1:7/x?a=b",
            ),
            ("postgresql://db/x", "db:5432", "postgresql://127.0.0.1:7/x"),
            (
                "postgres://[::1]:9/x",
                "[::1]:9",
                "postgres://127.0.0.1:7/x",
            ),
            ("postgres://[::1]", "[::1]:5432", "postgres://127.0.0.1:7"),
        ] {
            let target = Target::read(url).unwrap();
            assert_eq!(target.server(), server);
            assert_eq!(target.through(proxy), through);
        }
    }

    #[test]
    fn an_address_without_one_host_is_refused() {
        for url in [
            "db",
            "http://db/x",
            "postgres:///x",
            "postgres://a:1,b:2/x",
            "postgres://%2Ftmp/x",
        ] {
            assert!(
                Target::read(url)
                    .unwrap_err()
                    .to_string()
                    .contains("postgres://user@host")
            );
        }
    }
}
