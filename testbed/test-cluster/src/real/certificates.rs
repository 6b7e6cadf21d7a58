//! A certificate authority for one pair of servers, and the certificate that both present.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// PEM texts, and the authority in DER.
#[derive(Clone, Debug)]
pub(super) struct Certificates(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    authority_pem: String,
    authority_der: Vec<u8>,
    certificate: String,
    key: String,
}

impl Certificates {
    pub(super) fn new() -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::new(vec![])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "test-cluster");
        let authority_key = KeyPair::generate()?;
        let authority = params.self_signed(&authority_key)?;
        let issuer = Issuer::new(params, authority_key);

        let names = ["127.0.0.1", "localhost", "kubernetes.default.svc"].map(str::to_owned);
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(names.to_vec())?.signed_by(&key, &issuer)?;
        Ok(Self(Arc::new(Inner {
            authority_pem: authority.pem(),
            authority_der: authority.der().to_vec(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })))
    }

    pub(super) fn authority_der(&self) -> Vec<u8> {
        self.0.authority_der.clone()
    }

    /// The PEM text in base64, as a kubeconfig has it.
    pub(super) fn authority_base64(&self) -> String {
        BASE64_STANDARD.encode(&self.0.authority_pem)
    }

    pub(super) fn certificate(&self) -> &str {
        &self.0.certificate
    }

    /// The private key; the servers also sign service account tokens with it.
    pub(super) fn key(&self) -> &str {
        &self.0.key
    }
}
