//! Encrypted connections to databases, with libpq's meanings of `sslmode` and `sslrootcert`.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use crate::exit::{self, CliError, Result};

/// `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Mode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Ok(match text {
            "disable" => Self::Disable,
            "allow" => Self::Allow,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => {
                return Err(
                    "sslmode is disable, allow, prefer, require, verify-ca or verify-full"
                        .to_owned(),
                );
            }
        })
    }
}

/// The options of an address that are about encryption.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub(crate) mode: Option<Mode>,
    /// A PEM file, or `system`.
    pub(crate) root: Option<String>,
    pub(crate) certificate: Option<String>,
    pub(crate) key: Option<String>,
}

impl Settings {
    /// Takes an option, if it is one of these.
    pub(crate) fn take(&mut self, name: &str, value: &str) -> std::result::Result<bool, String> {
        match name {
            "sslmode" => self.mode = Some(value.parse()?),
            "sslrootcert" => self.root = Some(value.to_owned()),
            "sslcert" => self.certificate = Some(value.to_owned()),
            "sslkey" => self.key = Some(value.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The mode in force.
    pub(crate) fn mode(&self) -> Mode {
        match self.mode {
            Some(mode) => mode,
            // As libpq does: authorities that anybody can get a certificate of prove nothing without the name.
            None if self.trusts_system() => Mode::VerifyFull,
            None => Mode::Prefer,
        }
    }

    fn trusts_system(&self) -> bool {
        self.root.as_deref() == Some("system")
    }

    /// The file of authorities: the one that was named, or libpq's own where it exists.
    fn root_file(&self) -> Option<PathBuf> {
        let named = self.root.as_ref().filter(|_| !self.trusts_system());
        named.map(PathBuf::from).or_else(|| in_home("root.crt"))
    }
}

fn in_home(file: &str) -> Option<PathBuf> {
    let path = Path::new(&std::env::var_os("HOME")?)
        .join(".postgresql")
        .join(file);
    path.exists().then_some(path)
}

/// How a connection is encrypted and whom it trusts. Not for `sslmode=disable`.
pub(crate) fn client_config(settings: &Settings) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| {
            CliError::new(
                exit::FAILED,
                format!("no TLS: {error}"),
                "Please report it.",
            )
        })?;
    let roots = roots(settings)?;
    let builder = match (settings.mode(), roots) {
        (Mode::VerifyFull, Some(roots)) => builder.with_root_certificates(roots),
        (_, roots) => {
            let chain = roots
                .map(|roots| {
                    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                        .build()
                })
                .transpose()
                .map_err(|error| usage(format!("no authority can be used: {error}")))?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(WithoutName { chain, provider }))
        }
    };
    match client_certificate(settings)? {
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| usage(format!("the client's certificate cannot be used: {error}"))),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// The authorities to check against; none where the mode does not ask for a check.
pub(crate) fn roots(settings: &Settings) -> Result<Option<RootCertStore>> {
    let mode = settings.mode();
    let mut roots = RootCertStore::empty();
    if settings.trusts_system() && mode >= Mode::Require {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(Some(roots));
    }
    let file = match (mode, settings.root_file()) {
        (Mode::Disable | Mode::Allow | Mode::Prefer, _) | (Mode::Require, None) => return Ok(None),
        (_, Some(file)) => file,
        (Mode::VerifyCa | Mode::VerifyFull, None) => {
            return Err(usage(
                "sslmode=verify-ca and verify-full need an authority to check the server's certificate against".to_owned(),
            ));
        }
    };
    for certificate in certificates(&file)? {
        roots
            .add(certificate)
            .map_err(|error| unreadable(&file, &error))?;
    }
    Ok(Some(roots))
}

fn client_certificate(
    settings: &Settings,
) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>> {
    let file =
        |named: &Option<String>, own| named.clone().map(PathBuf::from).or_else(|| in_home(own));
    let (Some(certificate), Some(key)) = (
        file(&settings.certificate, "postgresql.crt"),
        file(&settings.key, "postgresql.key"),
    ) else {
        return Ok(None);
    };
    let chain = certificates(&certificate)?;
    let key = PrivateKeyDer::from_pem_file(&key).map_err(|error| unreadable(&key, &error))?;
    Ok(Some((chain, key)))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(file)
        .and_then(|found| found.collect::<std::result::Result<Vec<_>, _>>())
        .map_err(|error| unreadable(file, &error))
}

fn unreadable(file: &Path, error: &dyn std::fmt::Display) -> CliError {
    usage(format!("{} cannot be read: {error}", file.display()))
}

fn usage(message: String) -> CliError {
    CliError::new(
        exit::USAGE,
        message,
        "Let sslrootcert (or PGSSLROOTCERT) name a PEM file with the authority that signed the server's certificate, \
         or be `system`; see the page on TLS.",
    )
}

/// Checks the chain, where there are authorities, and not the server's name.
#[derive(Debug)]
struct WithoutName {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for WithoutName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        // The name is looked at last: an error about it means that the chain is good.
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
