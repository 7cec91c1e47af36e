//! TLS and SASL of Kafka's clients.

use std::path::PathBuf;

use rdkafka::ClientConfig;

/// How a Kafka client proves who it is and checks whom it talks to. Default: plain TCP, no login.
///
/// ```
/// use pgonce_broker::{KafkaSecurity, SaslMechanism};
///
/// let msk = KafkaSecurity::tls().sasl(SaslMechanism::ScramSha512, "orders", "s3cret");
/// let own_authority = KafkaSecurity::tls().ca("/etc/kafka/ca.pem");
/// assert!(!format!("{msk:?}").contains("s3cret"));
/// # let _ = own_authority;
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KafkaSecurity {
    tls: bool,
    ca: Option<PathBuf>,
    client: Option<(PathBuf, PathBuf)>,
    sasl: Option<(SaslMechanism, String, String)>,
}

/// SASL mechanism of a Kafka login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaslMechanism {
    /// `PLAIN`: the password itself is sent. Refused without TLS.
    Plain,
    /// `SCRAM-SHA-256`.
    ScramSha256,
    /// `SCRAM-SHA-512`.
    ScramSha512,
}

impl SaslMechanism {
    const ALL: [Self; 3] = [Self::Plain, Self::ScramSha256, Self::ScramSha512];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

impl std::str::FromStr for SaslMechanism {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|mechanism| mechanism.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| {
            format!("unknown mechanism {text:?}: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
        })
    }
}

impl KafkaSecurity {
    /// TLS, with the certificates that the system trusts.
    pub fn tls() -> Self {
        Self {
            tls: true,
            ..Self::default()
        }
    }

    /// PEM file of the authorities to trust instead of the system's.
    #[must_use]
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// PEM files of the client's own certificate and its key, for brokers that ask for one.
    #[must_use]
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client = Some((certificate.into(), key.into()));
        self
    }

    /// Login by SASL.
    #[must_use]
    pub fn sasl(
        mut self,
        mechanism: SaslMechanism,
        user: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        self.sasl = Some((mechanism, user.into(), password.into()));
        self
    }

    /// Adds what it says to a client's configuration, or answers why it cannot.
    pub(crate) fn apply(&self, config: &mut ClientConfig) -> Result<(), String> {
        let path = |file: &PathBuf| file.to_string_lossy().into_owned();
        let protocol = match (self.tls, &self.sasl) {
            (false, Some((SaslMechanism::Plain, ..))) => {
                return Err(
                    "SASL PLAIN would send the password in clear text: use TLS (kafka+tls://), or a SCRAM mechanism"
                        .to_owned(),
                );
            }
            (false, None) if self.ca.is_some() || self.client.is_some() => {
                return Err("certificates need TLS: use kafka+tls://".to_owned());
            }
            (false, None) => return Ok(()),
            (false, Some(_)) => "sasl_plaintext",
            (true, None) => "ssl",
            (true, Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(ca) = &self.ca {
            config.set("ssl.ca.location", path(ca));
        }
        if let Some((certificate, key)) = &self.client {
            config.set("ssl.certificate.location", path(certificate));
            config.set("ssl.key.location", path(key));
        }
        if let Some((mechanism, user, password)) = &self.sasl {
            config.set("sasl.mechanism", mechanism.name());
            config.set("sasl.username", user);
            config.set("sasl.password", password);
        }
        Ok(())
    }
}

impl std::fmt::Debug for KafkaSecurity {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let login = self.sasl.as_ref();
        f.debug_struct("KafkaSecurity")
            .field("tls", &self.tls)
            .field("ca", &self.ca)
            .field("sasl", &login.map(|(mechanism, user, _)| (mechanism, user)))
            .finish_non_exhaustive()
    }
}
