//! Certificates for the webhook's server: a certificate authority of our own and a serving certificate.
//!
//! The secrets hold names, ends and the authority that signed beside the PEM texts. The annotations mark a secret as ours. They
//! stay when a backup, cert-manager or a person replaces the certificate, so its end is read from it, and its signature is
//! verified. Secrets of the Go program have no such annotations, and are replaced once; the Go program's authority stays in the
//! bundle, so that API servers trust its replicas until they are gone.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;

/// How long an authority lasts, and how long before its end the rotator replaces it; in days.
const AUTHORITY_DAYS: (i64, i64) = (3650, 365);
/// The same for a serving certificate.
const SERVING_DAYS: (i64, i64) = (365, 90);
/// The name of every authority that the rotator makes.
const AUTHORITY_NAME: &str = "harvester-load-balancer-webhook-ca";

/// A certificate authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authority {
    /// Its certificate.
    pub(crate) certificate: String,
    /// The certificate of the authority before it, trusted as well.
    pub(crate) former: Option<String>,
    pub(crate) key: String,
    /// The day at whose beginning, in UTC, it ends.
    pub(crate) ends: Date,
}

impl Authority {
    /// The certificates that clients should trust.
    pub(crate) fn bundle(&self) -> String {
        format!("{}{}", self.certificate, self.former.as_deref().unwrap_or_default())
    }

    /// Whether its certificate has the name of ours. What this program signs names that one as its issuer, so by the key of an
    /// authority with another name it makes what nobody trusts.
    pub(crate) fn is_ours(&self) -> bool {
        let mut roots = RootCertStore::empty();
        let is_read = CertificateDer::from_pem_slice(self.certificate.as_bytes())
            .is_ok_and(|certificate| roots.add(certificate).is_ok());
        let name = AUTHORITY_NAME.as_bytes();
        let is_named = |subject: &[u8]| subject.windows(name.len()).any(|part| part == name);
        is_read && roots.roots.iter().any(|root| is_named(root.subject.as_ref()))
    }

    /// Whether the key beside its certificate is its own.
    pub(crate) fn has_its_key(&self) -> bool {
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes());
        let (Ok(certificate), Ok(key)) = (certificate, key) else {
            return false;
        };
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(vec![certificate], key, &provider).is_ok()
    }
}

/// A serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Serving {
    pub(crate) certificate: String,
    pub(crate) key: String,
    /// The certificate of the authority that signed it.
    pub(crate) authority: String,
    pub(crate) names: BTreeSet<String>,
    /// The day at whose beginning, in UTC, it ends.
    pub(crate) ends: Date,
}

/// The first of the certificates that has to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Both are good until at least the beginning of this day.
    Good {
        until: Timestamp,
    },
    NeedsAuthority,
    NeedsServing,
}

/// Finds the certificate that is missing, near its end, not good for `names`, or not what the secret says.
pub(crate) fn state(
    authority: Option<&Authority>,
    serving: Option<&Serving>,
    names: &BTreeSet<String>,
    now: Timestamp,
) -> State {
    let Some(authority) = authority.filter(|authority| renewal(authority.ends, AUTHORITY_DAYS.1) > now)
    else {
        return State::NeedsAuthority;
    };
    let good = |serving: &&Serving| {
        serving.authority == authority.certificate
            && serving.names.is_superset(names)
            && renewal(serving.ends, SERVING_DAYS.1) > now
    };
    match serving.filter(good) {
        // the two alone do not tell into which of them somebody wrote
        Some(serving) if !serving.is_signed() => State::NeedsAuthority,
        Some(serving) => {
            let until = renewal(serving.ends, SERVING_DAYS.1).min(renewal(authority.ends, AUTHORITY_DAYS.1));
            State::Good { until }
        }
        None => State::NeedsServing,
    }
}

impl Serving {
    /// When it ends.
    pub(crate) fn end(&self) -> Timestamp {
        renewal(self.ends, 0)
    }

    /// All certificates that are served, its own first, and the key.
    pub(crate) fn chain_and_key(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), pem::Error> {
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect::<Result<_, _>>()?;
        Ok((chain, PrivateKeyDer::from_pem_slice(self.key.as_bytes())?))
    }

    /// Whether the authority beside it has signed it, the key beside it is its own, and a server can use all of it.
    pub(crate) fn is_signed(&self) -> bool {
        let provider = rustls::crypto::ring::default_provider();
        let authority = CertificateDer::from_pem_slice(self.authority.as_bytes());
        let (Ok((chain, key)), Ok(authority)) = (self.chain_and_key(), authority) else {
            return false;
        };
        let Some(own) = chain.first() else {
            return false;
        };
        // at a moment of its life: how much is left of that is no question here
        let at = Duration::from_secs(u64::try_from(self.end().as_second()).unwrap_or_default());
        let at = UnixTime::since_unix_epoch(at);
        let mut roots = RootCertStore::empty();
        let signed = roots.add(authority).and_then(|()| {
            let own = ParsedCertificate::try_from(own)?;
            let algorithms = provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&own, &roots, &[], at, algorithms)
        });
        signed.is_ok() && CertifiedKey::from_der(chain, key, &provider).is_ok()
    }
}

fn renewal(ends: Date, days: i64) -> Timestamp {
    let day = ends.saturating_sub(Span::new().days(days));
    day.to_zoned(TimeZone::UTC).map_or(Timestamp::MIN, |zoned| zoned.timestamp())
}

/// Makes an authority; clients still trust `former`.
pub(crate) fn new_authority(former: Option<String>, now: Timestamp) -> Result<Authority, rcgen::Error> {
    let (params, ends) = authority_params(now);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    Ok(Authority { certificate, former, key: key.serialize_pem(), ends })
}

/// Makes a serving certificate for `names`, DNS names and addresses.
pub(crate) fn new_serving(
    authority: &Authority,
    names: &BTreeSet<String>,
    now: Timestamp,
) -> Result<Serving, rcgen::Error> {
    let issuer = Issuer::new(authority_params(now).0, KeyPair::from_pem(&authority.key)?);
    let mut params = CertificateParams::new(names.iter().cloned().collect::<Vec<_>>())?;
    let ends = set_days(&mut params, now, SERVING_DAYS.0);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    let authority = authority.certificate.clone();
    Ok(Serving { certificate, key: key.serialize_pem(), authority, names: names.clone(), ends })
}

/// Everything of an authority but its key. A certificate knows its issuer by name and key only, so these need not be
/// the parameters of the day on which the authority was made.
fn authority_params(now: Timestamp) -> (CertificateParams, Date) {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ends = set_days(&mut params, now, AUTHORITY_DAYS.0);
    (params, ends)
}

/// Good from yesterday (clocks differ) until the day in so many days.
fn set_days(params: &mut CertificateParams, now: Timestamp, days: i64) -> Date {
    let today = now.to_zoned(TimeZone::UTC).date();
    let (first, ends) =
        (today.saturating_sub(Span::new().days(1)), today.saturating_add(Span::new().days(days)));
    let day = |date: Date| {
        let (month, day) =
            (u8::try_from(date.month()).expect("1 to 12"), u8::try_from(date.day()).expect("1 to 31"));
        rcgen::date_time_ymd(i32::from(date.year()), month, day)
    };
    params.not_before = day(first);
    params.not_after = day(ends);
    ends
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn now() -> Timestamp {
        "2026-08-20T10:00:00Z".parse().unwrap()
    }

    fn later(days: i64) -> Timestamp {
        now() + jiff::SignedDuration::from_hours(24 * days)
    }

    #[rstest]
    #[case::just_made(&["a.svc"], 0, None)]
    #[case::before_renewal(&["a.svc"], 274, None)]
    #[case::serving_near_its_end(&["a.svc"], 276, Some(State::NeedsServing))]
    #[case::authority_near_its_end(&["a.svc"], 3286, Some(State::NeedsAuthority))]
    #[case::another_name(&["b.svc"], 0, Some(State::NeedsServing))]
    fn certificates_are_renewed_before_they_end(
        #[case] wanted: &[&str],
        #[case] days: i64,
        #[case] expected: Option<State>,
    ) {
        let authority = new_authority(None, now()).unwrap();
        let serving = new_serving(&authority, &names(&["a.svc", "127.0.0.1"]), now()).unwrap();
        let state = state(Some(&authority), Some(&serving), &names(wanted), later(days));
        let expected = expected.unwrap_or(State::Good { until: "2027-05-22T00:00:00Z".parse().unwrap() });
        assert_eq!(state, expected);
    }

    #[test]
    fn a_new_authority_asks_for_a_new_serving_certificate_and_keeps_the_former_trusted() {
        let former = new_authority(None, now()).unwrap();
        let serving = new_serving(&former, &names(&["a.svc"]), now()).unwrap();
        let authority = new_authority(Some(former.certificate.clone()), now()).unwrap();
        assert_eq!(state(Some(&authority), Some(&serving), &names(&["a.svc"]), now()), State::NeedsServing);
        assert_eq!(state(None, Some(&serving), &names(&["a.svc"]), now()), State::NeedsAuthority);
        assert!(
            authority.bundle().contains(&former.certificate)
                && authority.bundle().contains(&authority.certificate)
        );
    }
}
