//! The formats of texts and numbers that the real server checks; unknown formats are not checked there either.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine;

/// Whether the text has that format.
pub(super) fn is(format: &str, text: &str) -> bool {
    match format {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "date-time" | "datetime" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => is_uuid(text),
        "mac" => is_mac(text),
        "hostname" => text.len() <= 255 && text.split('.').all(is_host_label),
        "uri" => text.split_once(':').is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty()),
        _ => true,
    }
}

/// The formats above, which are also the names in error texts.
pub(super) fn is_known(format: &str) -> bool {
    const KNOWN: [&str; 14] = [
        "ipv4",
        "ipv6",
        "cidr",
        "date-time",
        "datetime",
        "date",
        "byte",
        "uuid",
        "uuid3",
        "uuid4",
        "uuid5",
        "mac",
        "hostname",
        "uri",
    ];
    KNOWN.contains(&format)
}

fn is_cidr(text: &str) -> bool {
    text.split_once('/').is_some_and(|(address, length)| {
        let max = match address.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => 32,
            Ok(IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        length.bytes().all(|c| c.is_ascii_digit()) && length.parse::<u8>().is_ok_and(|length| length <= max)
    })
}

fn is_uuid(text: &str) -> bool {
    let digits = text.replace('-', "");
    digits.len() == 32 && digits.bytes().all(|c| c.is_ascii_hexdigit())
}

fn is_mac(text: &str) -> bool {
    let pairs = text.split([':', '-']).collect::<Vec<_>>();
    matches!(pairs.len(), 6 | 8 | 20)
        && pairs.iter().all(|pair| pair.len() == 2 && pair.bytes().all(|c| c.is_ascii_hexdigit()))
}

fn is_host_label(label: &str) -> bool {
    !label.is_empty()
        && label.len() <= 63
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
}
