//! The wire format of protobuf: tags, varints, lengths. Nothing is copied.

/// A fault of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault(pub(super) &'static str);

/// A field's content by wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Scalar<'a> {
    pub(super) fn number(self) -> Result<u64, Fault> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Bytes(_) => Err(Fault("bytes where a number belongs")),
        }
    }

    pub(super) fn bytes(self) -> Result<&'a [u8], Fault> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err(Fault("a number where bytes belong")),
        }
    }

    pub(super) fn text(self) -> Result<&'a str, Fault> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Fault("a text that is not UTF-8"))
    }
}

/// The bytes that are still to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next field's number and content; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Scalar<'a>)>, Fault> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number =
            u32::try_from(tag >> 3).ok().filter(|n| *n > 0).ok_or(Fault("a field without a number"))?;
        let scalar = match tag & 7 {
            0 => Scalar::Number(self.varint()?),
            1 => Scalar::Number(u64::from_le_bytes(self.fixed()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Fault("a length out of range"))?;
                Scalar::Bytes(self.take(length)?)
            }
            5 => Scalar::Number(u64::from(u32::from_le_bytes(self.fixed()?))),
            _ => return Err(Fault("an unknown wire type")),
        };
        Ok(Some((number, scalar)))
    }

    pub(super) fn varint(&mut self) -> Result<u64, Fault> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.fixed()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Fault("a number that does not end"))
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        self.take(N)?.try_into().map_err(|_| Fault("it ends too early"))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Fault("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }
}

/// The last occurrence of a field in a message.
pub(super) fn field(bytes: &[u8], wanted: u32) -> Result<Option<Scalar<'_>>, Fault> {
    let mut found = None;
    let mut reader = Reader(bytes);
    while let Some((number, scalar)) = reader.next()? {
        if number == wanted {
            found = Some(scalar);
        }
    }
    Ok(found)
}
