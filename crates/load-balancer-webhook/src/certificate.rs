//! Certificates for the webhook's server: a certificate authority of our own and a serving certificate.
//!
//! What is stored beside the PEM texts (names, ends, the authority that signed) saves us from reading X.509. What
//! was stored by the Go program has none of it, and is replaced once; its authority stays in the bundle, so that its
//! replicas are believed until they are gone.

use std::collections::BTreeSet;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// How long an authority lasts, and how long before its end it is replaced; in days.
const AUTHORITY_DAYS: (i64, i64) = (3650, 365);
/// The same for a serving certificate.
const SERVING_DAYS: (i64, i64) = (365, 90);

/// A certificate authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    /// Its certificate.
    pub(super) certificate: String,
    /// The certificate of the one before it, believed as well.
    pub(super) former: Option<String>,
    pub(super) key: String,
    /// First day on which it is no longer good.
    pub(super) ends: Date,
}

impl Authority {
    /// Whom clients should believe.
    pub(super) fn bundle(&self) -> String {
        format!("{}{}", self.certificate, self.former.as_deref().unwrap_or_default())
    }
}

/// A serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Serving {
    pub(super) certificate: String,
    pub(super) key: String,
    /// The certificate of the authority that signed it.
    pub(super) authority: String,
    pub(super) names: BTreeSet<String>,
    pub(super) ends: Date,
}

/// What has to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Both are good until at least this day's beginning.
    Keep {
        until: Timestamp,
    },
    Authority,
    Serving,
}

/// What is missing or near its end.
pub(super) fn plan(
    authority: Option<&Authority>,
    serving: Option<&Serving>,
    names: &BTreeSet<String>,
    now: Timestamp,
) -> Plan {
    let Some(authority) = authority.filter(|authority| renewal(authority.ends, AUTHORITY_DAYS.1) > now)
    else {
        return Plan::Authority;
    };
    let good = |serving: &&Serving| {
        serving.authority == authority.certificate
            && serving.names.is_superset(names)
            && renewal(serving.ends, SERVING_DAYS.1) > now
    };
    match serving.filter(good) {
        Some(serving) => {
            let until = renewal(serving.ends, SERVING_DAYS.1).min(renewal(authority.ends, AUTHORITY_DAYS.1));
            Plan::Keep { until }
        }
        None => Plan::Serving,
    }
}

fn renewal(ends: Date, days: i64) -> Timestamp {
    let day = ends.saturating_sub(Span::new().days(days));
    day.to_zoned(TimeZone::UTC).map_or(Timestamp::MIN, |zoned| zoned.timestamp())
}

/// Makes an authority; `former` stays believed.
pub(super) fn new_authority(former: Option<String>, now: Timestamp) -> Result<Authority, rcgen::Error> {
    let (params, ends) = authority_params(now);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    Ok(Authority { certificate, former, key: key.serialize_pem(), ends })
}

/// Makes a serving certificate for `names`, DNS names and addresses.
pub(super) fn new_serving(
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

/// Everything of an authority but its key. The issuer of what it signs is known by name and key only, so these
/// need not be those of the day on which it was made.
fn authority_params(now: Timestamp) -> (CertificateParams, Date) {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "harvester-load-balancer-webhook-ca");
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
    #[case::serving_near_its_end(&["a.svc"], 276, Some(Plan::Serving))]
    #[case::authority_near_its_end(&["a.svc"], 3286, Some(Plan::Authority))]
    #[case::another_name(&["b.svc"], 0, Some(Plan::Serving))]
    fn certificates_are_renewed_before_they_end(
        #[case] wanted: &[&str],
        #[case] days: i64,
        #[case] expected: Option<Plan>,
    ) {
        let authority = new_authority(None, now()).unwrap();
        let serving = new_serving(&authority, &names(&["a.svc", "127.0.0.1"]), now()).unwrap();
        let plan = plan(Some(&authority), Some(&serving), &names(wanted), later(days));
        let expected = expected.unwrap_or(Plan::Keep { until: "2027-05-22T00:00:00Z".parse().unwrap() });
        assert_eq!(plan, expected);
    }

    #[test]
    fn a_new_authority_asks_for_a_new_serving_certificate_and_keeps_the_former_believed() {
        let former = new_authority(None, now()).unwrap();
        let serving = new_serving(&former, &names(&["a.svc"]), now()).unwrap();
        let authority = new_authority(Some(former.certificate.clone()), now()).unwrap();
        assert_eq!(plan(Some(&authority), Some(&serving), &names(&["a.svc"]), now()), Plan::Serving);
        assert_eq!(plan(None, Some(&serving), &names(&["a.svc"]), now()), Plan::Authority);
        assert!(
            authority.bundle().contains(&former.certificate)
                && authority.bundle().contains(&authority.certificate)
        );
    }
}
