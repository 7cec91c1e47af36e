//! Encrypted connections to the API.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::exit::{self, CliError, Result};

/// Trusts the system's authorities, and those in the PEM file of `--cacert`.
pub(crate) fn client_config(cacert: Option<&Path>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = cacert {
        let unreadable = |why: String| {
            CliError::new(
                exit::USAGE,
                format!(
                    "the certificates in {} cannot be read: {why}",
                    path.display()
                ),
                "Let --cacert name a PEM file with the authority that signed the server's certificate.",
            )
        };
        let certificates = CertificateDer::pem_file_iter(path)
            .and_then(|found| found.collect::<std::result::Result<Vec<_>, _>>())
            .map_err(|error| unreadable(error.to_string()))?;
        for certificate in certificates {
            roots
                .add(certificate)
                .map_err(|error| unreadable(error.to_string()))?;
        }
    }
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .map_err(|error| {
            CliError::new(
                exit::FAILED,
                format!("no TLS: {error}"),
                "Please report it.",
            )
        })?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
