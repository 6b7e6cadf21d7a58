//! TLS of HTTPS health checks, without a look at the certificate.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use tokio_rustls::TlsConnector;

/// Takes every certificate, as kubelet's probes do. A backend is known by its address, which its certificate seldom names,
/// and the probe tells it nothing but a path: that its port answers is all that is asked. For the same reason signatures
/// are not verified. Nothing else may use this; it is private to the dialler.
///
/// Not every chain of them: for each ticket rustls copies the chain that it took, so the work of one connection would be
/// certificates times tickets, and one task makes the probes of all tenants.
#[derive(Debug)]
struct AnyCertificate;

/// The longest chain that is taken, in certificates and in bytes: several times what certificate authorities hand out.
const MOST_CERTIFICATES: usize = 16;
const MOST_OF_CERTIFICATES: usize = 16 * 1_024;

/// The end of a dial whose backend shows more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{certificates} certificates with {bytes} bytes, at most {MOST_CERTIFICATES} with {MOST_OF_CERTIFICATES} are taken: \
     shorten the chain"
)]
struct TooLong {
    certificates: usize,
    bytes: usize,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificates = others.len() + 1;
        let bytes = own.len() + others.iter().map(|other| other.len()).sum::<usize>();
        if certificates > MOST_CERTIFICATES || bytes > MOST_OF_CERTIFICATES {
            return Err(Error::Other(OtherError(Arc::new(TooLong { certificates, bytes }))));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    /// All that there are: a backend whose key is of a kind that we cannot verify answers all the same.
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ECDSA_NISTP384_SHA384,
            SignatureScheme::ECDSA_NISTP521_SHA512,
            SignatureScheme::ED25519,
            SignatureScheme::ED448,
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PSS_SHA384,
            SignatureScheme::RSA_PSS_SHA512,
            SignatureScheme::RSA_PKCS1_SHA256,
            SignatureScheme::RSA_PKCS1_SHA384,
            SignatureScheme::RSA_PKCS1_SHA512,
            SignatureScheme::RSA_PKCS1_SHA1,
            SignatureScheme::ECDSA_SHA1_Legacy,
        ]
    }
}

pub(crate) fn connector() -> TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has cipher suites of these versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    // nothing of a backend is kept from one probe to the next
    config.resumption = Resumption::disabled();
    TlsConnector::from(Arc::new(config))
}
