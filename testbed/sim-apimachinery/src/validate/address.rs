//! IP addresses and networks in fields of objects.

use std::net::IpAddr;

use serde_json::Value;

use super::text;
use crate::status::Cause;

/// The address that a text stands for.
///
/// # Errors
/// Parses an address. The error names the fault.
pub(super) fn parse(text: &str) -> Result<IpAddr, &'static str> {
    match text.parse() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            Err("must not be an IPv4-mapped IPv6 address")
        }
        Ok(address) => Ok(address),
        Err(_) if without_leading_zeros(text).parse::<IpAddr>().is_ok() => Err("must not have leading 0s"),
        Err(_) => Err("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
    }
}

fn without_leading_zeros(text: &str) -> String {
    let part = |part: &str| match part.trim_start_matches('0') {
        "" if !part.is_empty() => "0".to_owned(),
        rest => rest.to_owned(),
    };
    text.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// The address in a field; a cause where there is none.
pub(super) fn read(field: &str, value: &Value, causes: &mut Vec<Cause>) -> Option<IpAddr> {
    parse(text(value)).map_err(|detail| causes.push(Cause::invalid(field, value, detail))).ok()
}

/// Refuses an address that means something else on every machine.
pub(super) fn refuse_special(field: &str, value: &Value, address: IpAddr, causes: &mut Vec<Cause>) {
    let mut refuse = |detail: &str| causes.push(Cause::invalid(field, value, detail));
    if address.is_unspecified() {
        refuse(&format!("may not be unspecified ({})", text(value)));
    }
    if address.is_loopback() {
        refuse("may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let (link_local, multicast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] & 0xff0f == 0xff02),
    };
    if link_local {
        refuse("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if multicast {
        refuse("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

/// Returns the fault of a network's text.
pub(super) fn network_fault(text: &str) -> Option<&'static str> {
    let network = text.split_once('/').and_then(|(address, length)| {
        let address: IpAddr = address.parse().ok()?;
        let length: u32 = length.parse().ok()?;
        let (bits, width) = match address {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, 32),
            IpAddr::V6(v6) => (u128::from(v6), 128),
        };
        (length <= width).then(|| bits.checked_shl(length).unwrap_or(0))
    });
    match network {
        None => Some("must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
        Some(0) => None,
        Some(_) => Some("must not have bits set beyond the prefix length"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("198.18.0.1", None)]
    #[case("2001:db8::1", None)]
    #[case("127.0.0.1", Some("may not be in the loopback range (127.0.0.0/8, ::1/128)"))]
    #[case("169.254.0.1", Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)"))]
    #[case("fe80::1", Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)"))]
    #[case("ff02::1", Some("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"))]
    #[case("0.0.0.0", Some("may not be unspecified (0.0.0.0)"))]
    #[case("010.0.0.1", Some("must not have leading 0s"))]
    #[case("0.0.0.00", Some("must not have leading 0s"))]
    #[case("::ffff:1.2.3.4", Some("must not be an IPv4-mapped IPv6 address"))]
    #[case("ten", Some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"))]
    fn addresses_that_no_backend_can_have_are_refused(#[case] text: &str, #[case] fault: Option<&str>) {
        let (mut causes, value) = (vec![], Value::from(text));
        if let Some(address) = read("ip", &value, &mut causes) {
            refuse_special("ip", &value, address, &mut causes);
        }
        let expected: Vec<_> = fault.iter().map(|fault| Cause::invalid("ip", &value, fault)).collect();
        assert_eq!(causes, expected);
    }

    #[rstest]
    #[case("10.0.0.0/8", true)]
    #[case("0.0.0.0/0", true)]
    #[case("10.0.0.1/32", true)]
    #[case("2001:db8::/32", true)]
    #[case("::1/128", true)]
    #[case("10.0.0.1/8", false)]
    #[case("10.0.0.0/33", false)]
    #[case("10.0.0.0", false)]
    fn a_network_has_no_bits_beyond_its_prefix(#[case] text: &str, #[case] good: bool) {
        assert_eq!(network_fault(text).is_none(), good);
    }
}
