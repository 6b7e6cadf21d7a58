//! The server's own certificate authority, and certificates from it.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Names under which a server may be reached besides its address.
const NAMES: [&str; 4] = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];

/// A certificate authority that signs itself.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    pub(crate) fn new() -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "sim-apiserver");
        CertifiedIssuer::self_signed(params, KeyPair::generate()?).map(Self)
    }

    /// The authority's certificate, for kubeconfigs.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// TLS for a server at this address, HTTP/2 first.
    pub(crate) fn server_config(&self, address: IpAddr) -> std::io::Result<Arc<ServerConfig>> {
        let key = KeyPair::generate().map_err(std::io::Error::other)?;
        let names = NAMES.iter().map(ToString::to_string).chain([
            "127.0.0.1".to_owned(),
            "::1".to_owned(),
            address.to_string(),
        ]);
        let mut params = CertificateParams::new(names.collect::<Vec<_>>()).map_err(std::io::Error::other)?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let leaf = params.signed_by(&key, &self.0).map_err(std::io::Error::other)?;
        let chain = vec![leaf.der().clone(), self.0.der().clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(std::io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(std::io::Error::other)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}
