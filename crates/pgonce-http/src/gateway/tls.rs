//! Encrypted connections, of clients and to upstreams.

use std::path::Path;
use std::sync::Arc;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The certificates in a PEM file; none at all is an error too.
pub(crate) fn authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let fault = |why: String| format!("{}: {why}", file.display());
    let found = CertificateDer::pem_file_iter(file)
        .and_then(|found| found.collect::<Result<Vec<_>, _>>())
        .map_err(|error| fault(error.to_string()))?;
    if found.is_empty() {
        return Err(fault("there is no certificate in it".to_owned()));
    }
    Ok(found)
}

/// The name of HTTP/2 in a handshake.
pub(crate) const HTTP2: &[u8] = b"h2";

/// What shows a certificate to clients, and speaks HTTP/2 with those that can.
pub(crate) fn server(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, String> {
    let chain = authorities(certificate)?;
    let fault = |why: String| format!("{}: {why}", key.display());
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| fault(error.to_string()))?;
    let mut config =
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| fault(error.to_string()))?;
    config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// What opens connections, with TLS where the address says https: the certificate is always
/// checked, against the system's authorities and those of the file.
pub(crate) fn connector(ca_file: Option<&Path>) -> Result<HttpsConnector<HttpConnector>, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(file) = ca_file {
        for certificate in authorities(file)? {
            roots
                .add(certificate)
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
    }
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // Small answers must not wait for an acknowledgement of the piece before.
    tcp.set_nodelay(true);
    Ok(HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp))
}
