//! Hardware addresses.

use std::fmt;

/// A hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Reads `00:00:6c:01:02:03`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 6];
        let mut parts = text.trim().split(':');
        for byte in &mut bytes {
            let part = parts.next()?;
            *byte = (part.len() <= 2).then(|| u8::from_str_radix(part, 16).ok())??;
        }
        parts.next().is_none().then_some(Self(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardware_address_reads_back_what_it_prints() {
        let mac = Mac([0, 0, 0x6c, 0xab, 2, 255]);
        assert_eq!(mac.to_string(), "00:00:6c:ab:02:ff");
        assert_eq!(Mac::parse(&mac.to_string()), Some(mac));
        for wrong in ["00:00:6c:01:02", "00:00:6c:01:02:03:04", "00:00:6c:01:02:0003", ""] {
            assert_eq!(Mac::parse(wrong), None, "{wrong}");
        }
    }
}
