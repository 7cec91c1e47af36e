//! Addresses of databases, read as libpq reads them: a URL or `key=value` pairs, completed by the
//! `PG*` variables.

use std::net::IpAddr;
use std::time::Duration;

use deadpool_postgres::Manager;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Config, NoTls};

use crate::exit::{CliError, Result};
use crate::tls::{self, Mode, Settings};

/// Where a database is, as whom, and how the connection is encrypted.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) config: Config,
    tls: Settings,
}

impl Address {
    /// Reads an address. The error names the part that is wrong, never the address, which may have
    /// the password.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        Self::parse_with(text.trim(), &|name| std::env::var(name).ok())
    }

    fn parse_with(
        text: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> std::result::Result<Self, String> {
        let (mut rest, tls) = take_tls_options(text)?;
        if let Some(port) = variable("PGPORT").filter(|port| !port.is_empty()) {
            rest = with_port(&rest, &port);
        }
        // Where the scheme is misspelt, all of it would be taken for the name of an option, password included.
        let scheme = rest.split_once("://").map(|(scheme, _)| scheme);
        let scheme =
            scheme.filter(|scheme| !scheme.contains(|c: char| c == '=' || c.is_whitespace()));
        if scheme.is_some_and(|scheme| !["postgres", "postgresql"].contains(&scheme)) {
            return Err("it begins with neither postgres:// nor postgresql://".to_owned());
        }
        let config: Config = rest.parse().map_err(|error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            without_values(&format!("{error}{}", cause.unwrap_or_default()))
        })?;
        Self { config, tls }.completed_by(variable)
    }

    /// What the variables alone say, if they name a database.
    pub(crate) fn from_variables() -> Option<std::result::Result<Self, String>> {
        let given = ["PGHOST", "PGHOSTADDR", "PGDATABASE", "PGUSER"];
        let given = given.iter().any(|name| std::env::var_os(name).is_some());
        given.then(|| Self::parse(""))
    }

    /// Fills in what the address leaves open.
    fn completed_by(
        mut self,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> std::result::Result<Self, String> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let config = &mut self.config;
        if config.get_hostaddrs().is_empty()
            && let Some(addresses) = variable("PGHOSTADDR")
        {
            for address in addresses.split(',') {
                let address = address.parse();
                config.hostaddr(address.map_err(|_| "PGHOSTADDR is no IP address".to_owned())?);
            }
        }
        if config.get_hosts().is_empty() {
            // An address is a name too: TLS needs one.
            let addresses = config.get_hostaddrs().iter().map(IpAddr::to_string);
            let addresses = addresses.collect::<Vec<_>>().join(",");
            let addresses = Some(addresses).filter(|addresses| !addresses.is_empty());
            let hosts = variable("PGHOST").or(addresses);
            for host in hosts.as_deref().unwrap_or("localhost").split(',') {
                config.host(host);
            }
        }
        if config.get_ports().is_empty()
            && let Some(ports) = variable("PGPORT")
        {
            for port in ports.split(',') {
                config.port(
                    port.parse()
                        .map_err(|_| "PGPORT is not a port".to_owned())?,
                );
            }
        }
        for (is_set, name, set) in [
            (
                config.get_user().is_some(),
                "PGUSER",
                Config::user as fn(&mut Config, String) -> &mut Config,
            ),
            (config.get_dbname().is_some(), "PGDATABASE", Config::dbname),
            (
                config.get_application_name().is_some(),
                "PGAPPNAME",
                Config::application_name,
            ),
            (config.get_options().is_some(), "PGOPTIONS", Config::options),
        ] {
            if !is_set && let Some(value) = variable(name) {
                set(config, value);
            }
        }
        if config.get_password().is_none()
            && let Some(password) = variable("PGPASSWORD")
        {
            config.password(password);
        }
        if config.get_connect_timeout().is_none()
            && let Some(seconds) = variable("PGCONNECT_TIMEOUT")
        {
            let seconds = seconds
                .parse()
                .map_err(|_| "PGCONNECT_TIMEOUT is no number of seconds".to_owned())?;
            config.connect_timeout(Duration::from_secs(seconds));
        }
        let tls = &mut self.tls;
        if tls.mode.is_none()
            && let Some(mode) = variable("PGSSLMODE")
        {
            tls.mode = Some(mode.parse()?);
        }
        for (option, name) in [
            (&mut tls.root, "PGSSLROOTCERT"),
            (&mut tls.certificate, "PGSSLCERT"),
            (&mut tls.key, "PGSSLKEY"),
        ] {
            if option.is_none() {
                *option = variable(name);
            }
        }
        config.ssl_mode(match tls.mode() {
            Mode::Disable => SslMode::Disable,
            Mode::Allow | Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        });
        Ok(self)
    }

    /// Opens connections for a pool.
    pub(crate) fn manager(self) -> Result<Manager> {
        Ok(match self.tls()? {
            Some(config) => {
                let connector = tokio_postgres_rustls::MakeRustlsConnect::new(config);
                Manager::new(self.config, connector)
            }
            None => Manager::new(self.config, NoTls),
        })
    }

    /// How connections are encrypted, unless they are not.
    pub(crate) fn tls(&self) -> std::result::Result<Option<rustls::ClientConfig>, CliError> {
        match self.tls.mode() {
            Mode::Disable => Ok(None),
            _ => tls::client_config(&self.tls).map(Some),
        }
    }
}

/// Takes the options about encryption out of an address: the driver does not know all of them.
fn take_tls_options(text: &str) -> std::result::Result<(String, Settings), String> {
    let mut tls = Settings::default();
    let is_url = text.starts_with("postgres://") || text.starts_with("postgresql://");
    let rest = if is_url {
        let (address, query) = text.split_once('?').unwrap_or((text, ""));
        let mut kept = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !tls.take(name, &decoded(value)?)? {
                kept.push(pair);
            }
        }
        let separator = if kept.is_empty() { "" } else { "?" };
        format!("{address}{separator}{}", kept.join("&"))
    } else {
        let mut kept = Vec::new();
        for (name, value) in pairs(text)? {
            if !tls.take(&name, &value)? {
                let value = value.replace('\\', "\\\\").replace('\'', "\\'");
                kept.push(format!("{name}='{value}'"));
            }
        }
        kept.join(" ")
    };
    Ok((rest, tls))
}

/// A URL whose hosts have this port where they name none: the driver would fill in 5432.
fn with_port(address: &str, port: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else {
        return address.to_owned();
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    let hosts = hosts.split(',').map(|host| {
        let after_brackets = &host[host.rfind(']').unwrap_or(0)..];
        match host.is_empty() || after_brackets.contains(':') {
            true => host.to_owned(),
            false => format!("{host}:{port}"),
        }
    });
    let hosts = hosts.collect::<Vec<_>>().join(",");
    format!("{scheme}://{user}{hosts}{path}")
}

/// `%2F` is `/`.
fn decoded(text: &str) -> std::result::Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = rest.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        bytes.push(byte.ok_or("a % must be followed by two hexadecimal digits")?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| "an option of the address is not UTF-8".to_owned())
}

/// The pairs of `host=a user='b c'`.
fn pairs(text: &str) -> std::result::Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, after) = rest
            .split_once('=')
            .ok_or("write postgres://user@host/database, or key=value pairs")?;
        let after = after.trim_start();
        let quoted = after.starts_with('\'');
        let mut value = String::new();
        let mut characters = after.char_indices().skip(usize::from(quoted));
        let mut end = after.len();
        let mut closed = !quoted;
        while let Some((at, c)) = characters.next() {
            match c {
                '\\' => value.extend(characters.next().map(|(_, c)| c)),
                '\'' if quoted => {
                    (end, closed) = (at + 1, true);
                    break;
                }
                c if !quoted && c.is_whitespace() => {
                    end = at;
                    break;
                }
                c => value.push(c),
            }
        }
        if !closed {
            return Err("a quoted value has no end".to_owned());
        }
        pairs.push((name.trim().to_owned(), value));
        rest = after[end..].trim_start();
    }
    Ok(pairs)
}

/// An error about an address. An option that is unknown is named only where it looks like a name: it may be the rest of a password.
fn without_values(error: &str) -> String {
    let Some((before, quoted)) = error.split_once("unknown option") else {
        return error.to_owned();
    };
    let name = quoted.trim_matches([' ', '`']);
    let is_name = name.len() <= 30 && name.bytes().all(|c| c.is_ascii_lowercase() || c == b'_');
    match is_name {
        true => error.to_owned(),
        false => format!("{before}an option is unknown"),
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    fn parse(text: &str, variables: &[(&str, &str)]) -> Address {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Address::parse_with(text, &variable).unwrap()
    }

    #[test]
    fn urls_and_pairs_say_the_same() {
        for text in [
            "postgres://ada:s%27x@db:5433/shop?sslmode=verify-full&connect_timeout=3&sslrootcert=%2Fetc%2Fca.pem",
            r"host=db port=5433 user=ada password='s\'x' dbname=shop sslmode = verify-full connect_timeout=3 sslrootcert='/etc/ca.pem'",
        ] {
            let Address { config, tls } = parse(text, &[]);
            assert_eq!(config.get_hosts(), [Host::Tcp("db".to_owned())]);
            assert_eq!(config.get_ports(), [5433]);
            assert_eq!(config.get_password(), Some(&b"s'x"[..]));
            assert_eq!(config.get_dbname(), Some("shop"));
            assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(3)));
            assert_eq!(config.get_ssl_mode(), SslMode::Require);
            assert_eq!(
                (tls.mode(), tls.root.as_deref()),
                (Mode::VerifyFull, Some("/etc/ca.pem"))
            );
        }
    }

    #[test]
    fn variables_fill_in_what_the_address_leaves_open_and_nothing_else() {
        let variables = [
            ("PGHOST", "other"),
            ("PGPORT", "6000"),
            ("PGUSER", "bob"),
            ("PGPASSWORD", "secret"),
            ("PGDATABASE", "ledger"),
            ("PGSSLMODE", "disable"),
            ("PGSSLROOTCERT", "/ca.pem"),
        ];
        let Address { config, tls } = parse("postgres://ada@db/shop", &variables);
        assert_eq!(config.get_hosts(), [Host::Tcp("db".to_owned())]);
        assert_eq!(
            (config.get_user(), config.get_dbname()),
            (Some("ada"), Some("shop"))
        );
        assert_eq!(
            (config.get_ports(), config.get_password()),
            (&[6000][..], Some(&b"secret"[..]))
        );
        assert_eq!(
            (tls.mode(), tls.root.as_deref()),
            (Mode::Disable, Some("/ca.pem"))
        );
        for (url, ports) in [
            ("postgres://a:b@db:7000/shop", &[7000][..]),
            ("postgres://[::1],db:7000/shop", &[6000, 7000]),
        ] {
            assert_eq!(parse(url, &variables).config.get_ports(), ports, "{url}");
        }

        let placed = [("PGHOSTADDR", "192.0.2.7"), ("PGHOST", "db")];
        for (text, placed, host) in [
            ("", &placed[..], "db"),
            ("", &placed[..1], "192.0.2.7"),
            ("postgres://other/shop", &placed[..], "other"),
            ("hostaddr=192.0.2.7", &[], "192.0.2.7"),
        ] {
            let Address { config, .. } = parse(text, placed);
            assert_eq!(config.get_hosts(), [Host::Tcp(host.to_owned())], "{text}");
            assert_eq!(
                config.get_hostaddrs(),
                ["192.0.2.7".parse::<IpAddr>().unwrap()]
            );
        }
        let wrong = |name: &str| (name == "PGHOSTADDR").then(|| "db".to_owned());
        assert!(Address::parse_with("", &wrong).is_err());

        let Address { config, .. } = parse("", &variables);
        assert_eq!(config.get_hosts(), [Host::Tcp("other".to_owned())]);
        assert_eq!(
            (config.get_user(), config.get_dbname()),
            (Some("bob"), Some("ledger"))
        );
    }

    #[test]
    fn what_cannot_be_read_is_an_error_without_the_password() {
        for text in [
            "postgres://a:secret@db/x?sslmode=maybe",
            "postgres://a:secret@db/x?sslrootcert=%zz",
            "host=db password='secret",
            "secret",
        ] {
            let error = take_tls_options(text).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
        for text in [
            "postgre://a:secret7@db/x?connect_timeout=3",
            "postgres:/a:secret7@db/x?connect_timeout=3",
            "host=db secret7=1",
        ] {
            let error = Address::parse_with(text, &|_| None).err().unwrap();
            assert!(!error.contains("secret7"), "{error}");
        }
        let pairs = "host=db password=a://b application_name=x";
        assert!(Address::parse_with(pairs, &|_| None).is_ok());
    }
}
