//! Encrypted connections: to databases whose address says `?sslmode=require`, and to HTTP APIs.
//!
//! Stricter than libpq's word of the same name: the server's certificate is always checked, against
//! the system's authorities and, where it is set, the file that `PGSSLROOTCERT` names.

use std::ffi::OsStr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::exit::{self, Result, Trouble};

/// What opens encrypted connections to databases.
pub(crate) fn connector() -> Result<MakeRustlsConnect> {
    Ok(MakeRustlsConnect::new(to_databases()?))
}

/// Whom connections to databases trust.
pub(crate) fn to_databases() -> Result<ClientConfig> {
    let authorities = std::env::var_os("PGSSLROOTCERT");
    client_config(authorities.as_deref(), "PGSSLROOTCERT")
}

/// Trusts the system's authorities, and those in a PEM file that was `named` so.
pub(crate) fn client_config(authorities: Option<&OsStr>, named: &str) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = authorities {
        let unreadable = |why: String| {
            Trouble::new(
                exit::USAGE,
                format!(
                    "the certificates in {} cannot be read: {why}",
                    path.display()
                ),
                format!(
                    "Let {named} name a PEM file with the authority that signed the server's certificate."
                ),
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
            Trouble::new(
                exit::FAILED,
                format!("no TLS: {error}"),
                "Please report it.",
            )
        })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
