//! The two secrets that hold the certificates, shared by all replicas.

use std::collections::{BTreeMap, BTreeSet};

use cloud_config::expiry;
use harvester_api::annotations::{CERTIFICATE_ENDS, CERTIFICATE_NAMES};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use rcgen::KeyPair;

use crate::certificate::{Authority, Serving};

/// Secret of the authority.
pub(crate) const CA_SECRET: &str = "harvester-load-balancer-webhook-ca";
/// Secret of the serving certificate.
pub(crate) const TLS_SECRET: &str = "harvester-load-balancer-webhook-tls";

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// In the serving certificate's secret: the certificate of the authority that signed it.
const AUTHORITY: &str = "ca.crt";

const PEM_END: &str = "-----END CERTIFICATE-----";

/// The authority in a secret; nothing when another program made it, or a key is there that signs nothing.
pub(crate) fn authority(secret: &Secret) -> Option<Authority> {
    let bundle = text(secret, CERTIFICATE)?;
    let (certificate, former) = split_first(&bundle)?;
    let former = (!former.is_empty()).then_some(former);
    let (key, ends) = (text(secret, KEY)?, ends(secret, &certificate)?);
    KeyPair::from_pem(&key).ok()?;
    Some(Authority { certificate, former, key, ends })
}

/// The first certificate in a secret of an authority, whichever program made it.
pub(crate) fn first_certificate(secret: &Secret) -> Option<String> {
    Some(split_first(&text(secret, CERTIFICATE)?)?.0)
}

/// Whether a certificate is in a secret, whichever program put it there.
pub(crate) fn has_certificate(secret: &Secret) -> bool {
    text(secret, CERTIFICATE).is_some()
}

/// The serving certificate in a secret; nothing when another program made it.
pub(crate) fn serving(secret: &Secret) -> Option<Serving> {
    let names = secret
        .annotations()
        .get(CERTIFICATE_NAMES)?
        .split(',')
        .map(ToOwned::to_owned)
        .collect::<BTreeSet<_>>();
    let (certificate, key) = (text(secret, CERTIFICATE)?, text(secret, KEY)?);
    let ends = ends(secret, &certificate)?;
    Some(Serving { certificate, key, authority: text(secret, AUTHORITY)?, names, ends })
}

/// What helps where secrets are missing and the webhook may not make them, in one line.
pub(crate) fn advice(namespace: &str, missing: &[&str]) -> String {
    let make = |name: &&str| format!("kubectl --namespace {namespace} create secret generic {name}");
    format!(
        "missing in namespace {namespace}, and not to be made by this account: upgrade the release of the chart, or {}",
        missing.iter().map(make).collect::<Vec<_>>().join(" && ")
    )
}

/// `secret` (or a new one in `namespace`) with this authority in it.
pub(crate) fn with_authority(secret: Option<Secret>, namespace: &str, authority: &Authority) -> Secret {
    let data = [(CERTIFICATE, authority.bundle()), (KEY, authority.key.clone())];
    filled(secret, namespace, CA_SECRET, &data, &[(CERTIFICATE_ENDS, authority.ends.to_string())])
}

/// `secret` (or a new one in `namespace`) with this serving certificate in it.
pub(crate) fn with_serving(secret: Option<Secret>, namespace: &str, serving: &Serving) -> Secret {
    let data = [
        (CERTIFICATE, serving.certificate.clone()),
        (KEY, serving.key.clone()),
        (AUTHORITY, serving.authority.clone()),
    ];
    let names: Vec<&str> = serving.names.iter().map(String::as_str).collect();
    filled(
        secret,
        namespace,
        TLS_SECRET,
        &data,
        &[(CERTIFICATE_ENDS, serving.ends.to_string()), (CERTIFICATE_NAMES, names.join(","))],
    )
}

fn filled(
    secret: Option<Secret>,
    namespace: &str,
    name: &str,
    data: &[(&str, String)],
    annotations: &[(&str, String)],
) -> Secret {
    let mut secret = secret.unwrap_or_else(|| {
        let mut secret = Secret { type_: Some("kubernetes.io/tls".to_owned()), ..Secret::default() };
        secret.metadata.namespace = Some(namespace.to_owned());
        secret.metadata.name = Some(name.to_owned());
        secret
    });
    let bytes = data.iter().map(|(key, text)| ((*key).to_owned(), ByteString(text.clone().into_bytes())));
    secret.data.get_or_insert_with(BTreeMap::new).extend(bytes);
    secret
        .annotations_mut()
        .extend(annotations.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    secret
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    let bytes = &secret.data.as_ref()?.get(key)?.0;
    String::from_utf8(bytes.clone()).ok().filter(|text| !text.is_empty())
}

/// The day on which the certificate of a secret ends, read from the certificate. The annotation marks the secret as ours; it stays
/// when somebody replaces the certificate.
fn ends(secret: &Secret, certificate: &str) -> Option<Date> {
    secret.annotations().get(CERTIFICATE_ENDS)?;
    let end = expiry::of_certificate(certificate.as_bytes())?;
    Some(end.to_zoned(TimeZone::UTC).date())
}

/// The first and the second certificate of a bundle; a third is dropped.
fn split_first(bundle: &str) -> Option<(String, String)> {
    let mut parts = bundle.split_inclusive(PEM_END).map(str::trim).filter(|part| part.ends_with(PEM_END));
    let first = format!("{}\n", parts.next()?);
    Some((first, parts.next().map(|second| format!("{second}\n")).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::{State, new_authority, new_serving, state};

    /// The secret after somebody has put other texts into it; the annotations stay.
    fn with(mut secret: Secret, texts: &[(&str, &str)]) -> Secret {
        let texts = texts.iter().map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())));
        secret.data.get_or_insert_default().extend(texts);
        secret
    }

    // restored from a backup, copied from another Harvester, filled by cert-manager or by hand
    #[test]
    fn a_certificate_or_a_key_that_somebody_put_beside_our_annotations_is_made_anew() {
        let now = "2026-08-20T10:00:00Z".parse().unwrap();
        let names = BTreeSet::from(["a.svc".to_owned()]);
        let (ours, foreign) = (new_authority(None, now).unwrap(), new_authority(None, now).unwrap());
        let made = |authority: &Authority| new_serving(authority, &names, now).unwrap();
        let judged = |ca: &Secret, tls: &Secret| {
            let (authority, serving) = (authority(ca), serving(tls));
            state(authority.as_ref(), serving.as_ref(), &names, now)
        };
        let (ca, tls) = (with_authority(None, "lb", &ours), with_serving(None, "lb", &made(&ours)));
        assert!(matches!(judged(&ca, &tls), State::Good { .. }));

        let expired = new_serving(&ours, &names, "2020-01-01T10:00:00Z".parse().unwrap()).unwrap();
        let other = made(&foreign);
        for (pair, expected) in [(&expired, State::NeedsServing), (&other, State::NeedsAuthority)] {
            let tls = with(tls.clone(), &[(CERTIFICATE, &*pair.certificate), (KEY, &*pair.key)]);
            assert_eq!(judged(&ca, &tls), expected);
        }
        for key in [&*other.key, "letters"] {
            assert_eq!(judged(&ca, &with(tls.clone(), &[(KEY, key)])), State::NeedsAuthority);
        }

        // a chain that the server cannot read to its end would end the process again and again
        let cut = [
            "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n",
            "-----BEGIN CERTIFICATE-----\nMIIB\n",
        ];
        for cut in cut {
            let certificate = format!("{}{cut}", serving(&tls).unwrap().certificate);
            assert_eq!(
                judged(&ca, &with(tls.clone(), &[(CERTIFICATE, &*certificate)])),
                State::NeedsAuthority
            );
        }

        // what an authority signs whose key is another one's is trusted by nobody
        let mixed = with(ca.clone(), &[(KEY, &*foreign.key)]);
        let tls_of_mixed = with_serving(None, "lb", &made(&authority(&mixed).unwrap()));
        assert_eq!(judged(&mixed, &tls_of_mixed), State::NeedsAuthority);
        let old = new_authority(None, "2010-01-01T10:00:00Z".parse().unwrap()).unwrap();
        let expired = with(ca.clone(), &[(CERTIFICATE, &*old.certificate), (KEY, &*old.key)]);
        assert_eq!(judged(&expired, &tls), State::NeedsAuthority);
        assert_eq!(authority(&with(ca, &[(KEY, "letters")])), None);
    }

    #[test]
    fn a_stored_certificate_reads_back() {
        let now = "2026-08-20T10:00:00Z".parse().unwrap();
        let former = new_authority(None, now).unwrap();
        let stored = new_authority(Some(former.certificate), now).unwrap();
        let secret = with_authority(None, "harvester-system", &stored);
        assert_eq!(authority(&secret), Some(stored.clone()));
        assert_eq!(first_certificate(&secret), Some(stored.certificate.clone()));

        let names = BTreeSet::from([
            "127.0.0.1".to_owned(),
            "harvester-load-balancer-webhook.harvester-system.svc".to_owned(),
        ]);
        let certificate = new_serving(&stored, &names, now).unwrap();
        assert_eq!(serving(&with_serving(None, "harvester-system", &certificate)), Some(certificate));
    }

    #[test]
    fn a_missing_secret_is_named_with_the_command_that_makes_it() {
        let make = "kubectl --namespace lb create secret generic harvester-load-balancer-webhook";
        let said = "missing in namespace lb, and not to be made by this account: upgrade the release of the chart, or";
        assert_eq!(advice("lb", &[TLS_SECRET]), format!("{said} {make}-tls"));
        assert_eq!(advice("lb", &[CA_SECRET, TLS_SECRET]), format!("{said} {make}-ca && {make}-tls"));
    }

    #[test]
    fn the_go_programs_authority_is_replaced_but_its_certificate_is_read() {
        let now = "2026-08-20T10:00:00Z".parse().unwrap();
        let go = new_authority(None, now).unwrap();
        let mut secret = with_authority(None, "harvester-system", &go);
        secret.annotations_mut().clear();
        secret.annotations_mut().insert("listener.cattle.io/fingerprint".to_owned(), "SHA1=00".to_owned());
        assert_eq!(authority(&secret), None);
        assert_eq!(first_certificate(&secret), Some(go.certificate));
        let ours = with_authority(Some(secret), "harvester-system", &new_authority(None, now).unwrap());
        assert_eq!(ours.annotations()["listener.cattle.io/fingerprint"], "SHA1=00");
    }
}
