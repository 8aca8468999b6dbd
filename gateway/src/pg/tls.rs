//! The one place that says which server certificates are believed. Both kinds of connection use it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_cert::der::Decode;

use super::endpoint::{SslMode, TlsSettings};

/// TLS settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file does not hold what it should.
    #[error("read {what} {path:?}: check the setting and the file's rights")]
    File {
        /// What the file should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: pem::Error,
    },
    /// A file holds no certificate.
    #[error("{path:?} holds no certificate: expected PEM")]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The system has no authorities.
    #[error("this system has no certificate authorities: install them or set sslRootCert")]
    NoSystemRoots,
    /// One of `sslCert` and `sslKey` is missing.
    #[error("sslCert and sslKey belong together: set both or none")]
    HalfIdentity,
    /// The library refuses the certificate or the key.
    #[error("sslCert and sslKey cannot be used")]
    Identity {
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The library refuses a root certificate.
    #[error("a certificate of {path:?} cannot be used as an authority")]
    Root {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
}

/// The client configuration of the settings; none when the connection shall be plain text.
///
/// # Errors
/// When a file is missing or unusable.
pub fn client_config(settings: &TlsSettings) -> Result<Option<Arc<ClientConfig>>, TlsError> {
    if settings.mode == SslMode::Disable {
        return Ok(None);
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Verifier {
        roots: roots(settings)?,
        names: settings.mode == SslMode::VerifyFull,
        provider: Arc::clone(&provider),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for the default protocol versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let config = match (&settings.cert, &settings.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|source| TlsError::Identity { source })?,
        (Some(_), None) | (None, Some(_)) => return Err(TlsError::HalfIdentity),
    };
    Ok(Some(Arc::new(config)))
}

/// The `tls-server-end-point` channel binding of a server certificate: its hash under the hash of its own
/// signature. None where that hash is not defined or not known here; then SCRAM goes without binding.
pub fn server_end_point(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let parsed = x509_cert::Certificate::from_der(certificate).ok()?;
    match parsed.signature_algorithm.oid.to_string().as_str() {
        // MD5 and SHA-1 count as SHA-256 (RFC 5929, 4.1); then RSA and ECDSA with SHA-256.
        "1.2.840.113549.1.1.4"
        | "1.2.840.113549.1.1.5"
        | "1.2.840.10045.4.1"
        | "1.2.840.113549.1.1.11"
        | "1.2.840.10045.4.3.2" => Some(Sha256::digest(certificate).to_vec()),
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => {
            Some(Sha384::digest(certificate).to_vec())
        }
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => {
            Some(Sha512::digest(certificate).to_vec())
        }
        _ => None,
    }
}

/// Authorities, and the certificates among them as they are.
#[derive(Debug)]
struct Roots {
    authorities: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

fn roots(settings: &TlsSettings) -> Result<Option<Roots>, TlsError> {
    match (&settings.root_cert, settings.mode) {
        (Some(path), _) if path == Path::new("system") => system_roots().map(Some),
        (Some(path), _) => file_roots(path).map(Some),
        (None, SslMode::VerifyCa | SslMode::VerifyFull) => system_roots().map(Some),
        (None, SslMode::Disable | SslMode::Prefer | SslMode::Require) => Ok(None),
    }
}

fn system_roots() -> Result<Roots, TlsError> {
    let mut authorities = RootCertStore::empty();
    // The system's store may hold certificates that the library does not take; the others still serve.
    authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match authorities.is_empty() {
        true => Err(TlsError::NoSystemRoots),
        false => Ok(Roots {
            authorities,
            certificates: Vec::new(),
        }),
    }
}

fn file_roots(path: &Path) -> Result<Roots, TlsError> {
    let certificates = certificates(path)?;
    let mut authorities = RootCertStore::empty();
    for certificate in &certificates {
        authorities
            .add(certificate.clone())
            .map_err(|source| TlsError::Root {
                path: path.to_owned(),
                source,
            })?;
    }
    Ok(Roots {
        authorities,
        certificates,
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |source| TlsError::File {
        what: "certificates",
        path: path.to_owned(),
        source,
    };
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(file)?.collect();
    match found.map_err(file)? {
        none if none.is_empty() => Err(TlsError::NoCertificate {
            path: path.to_owned(),
        }),
        some => Ok(some),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| TlsError::File {
        what: "private key",
        path: path.to_owned(),
        source,
    })
}

/// Believes what the mode demands; the handshake's own signature is checked in every mode.
#[derive(Debug)]
struct Verifier {
    roots: Option<Roots>,
    names: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(roots) = &self.roots else {
            return Ok(ServerCertVerified::assertion());
        };
        let parsed = ParsedCertificate::try_from(end_entity)?;
        // A self-signed server certificate is its own authority, which the library's chain check refuses.
        if !roots.certificates.contains(end_entity) {
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &roots.authorities,
                intermediates,
                now,
                algorithms,
            )?;
        }
        if self.names {
            verify_server_name(&parsed, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
