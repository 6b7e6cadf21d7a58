//! Sizes of volumes, in bytes.
//!
//! The host's claim is a multiple of 2 MiB, and CSI is told what was asked for: so did the Go driver, and its volumes
//! are grown by the same rule. A growth that the rounding already has is none, and no fault
//! (docs/contract/csi-driver.md#sizes).

use crate::csi::CapacityRange;

/// The smallest volume.
pub const SMALLEST: u64 = 10 * MIB;
const MIB: u64 = 1024 * 1024;
/// Claims on the host are multiples of it.
const STEP: u64 = 2 * MIB;
/// CSI and Kubernetes count in 64 bits with a sign.
const LARGEST: u64 = i64::MAX as u64 / STEP * STEP;

/// The size of a volume that somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// What CSI is told.
    pub asked: u64,
    limit: Option<u64>,
}

/// Why a range of sizes is none. CSI's code is OUT_OF_RANGE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error("the size {0} is negative: ask for a positive number of bytes")]
    Negative(i64),
    #[error("the volume shall have at least {required} bytes and at most {limit}: raise the limit")]
    LimitBelowRequired { required: u64, limit: u64 },
    #[error("a volume has at least {SMALLEST} bytes, and its limit is {0}: raise the limit")]
    LimitBelowSmallest(u64),
    #[error("a volume of {0} bytes is larger than the host can count")]
    TooLarge(u64),
}

impl Size {
    /// The size that a range asks for; without a range, or with a smaller one, the smallest volume.
    ///
    /// # Errors
    /// For a range without any size that a volume may have.
    pub fn of(range: Option<&CapacityRange>) -> Result<Self, SizeError> {
        let CapacityRange { required_bytes, limit_bytes } = range.copied().unwrap_or_default();
        let positive = |bytes: i64| u64::try_from(bytes).map_err(|_| SizeError::Negative(bytes));
        let (required, limit) = (positive(required_bytes)?, positive(limit_bytes)?);
        // CSI writes "not specified" as 0
        let limit = (limit > 0).then_some(limit);
        match limit {
            Some(limit) if limit < required => {
                return Err(SizeError::LimitBelowRequired { required, limit });
            }
            Some(limit) if limit < SMALLEST => return Err(SizeError::LimitBelowSmallest(limit)),
            _ => {}
        }
        if required > LARGEST {
            return Err(SizeError::TooLarge(required));
        }
        Ok(Self { asked: required.max(SMALLEST), limit })
    }

    /// What the host's claim asks for.
    #[must_use]
    pub fn on_host(self) -> u64 {
        self.asked.next_multiple_of(STEP)
    }

    /// Whether a volume whose claim asks for `claimed` bytes is one of this size: made by this request before, or by
    /// one for the same size.
    #[must_use]
    pub fn is_met_by(self, claimed: u64) -> bool {
        // the rounding may lie above the limit, as the answer never does
        claimed >= self.asked && self.limit.is_none_or(|limit| claimed <= limit.next_multiple_of(STEP))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GIB: i64 = 1024 * 1024 * 1024;

    fn range(required_bytes: i64, limit_bytes: i64) -> CapacityRange {
        CapacityRange { required_bytes, limit_bytes }
    }

    #[rstest]
    #[case::nothing(None, SMALLEST, SMALLEST)]
    #[case::less_than_the_smallest(Some(range(1, 0)), SMALLEST, SMALLEST)]
    #[case::even(Some(range(GIB, 0)), 1 << 30, 1 << 30)]
    #[case::odd(Some(range(GIB + 1, 0)), (1 << 30) + 1, (1 << 30) + STEP)]
    #[case::exact(Some(range(GIB, GIB)), 1 << 30, 1 << 30)]
    fn csi_is_told_what_was_asked_and_the_claim_is_rounded(
        #[case] range: Option<CapacityRange>,
        #[case] asked: u64,
        #[case] on_host: u64,
    ) {
        let size = Size::of(range.as_ref()).unwrap();
        assert_eq!((size.asked, size.on_host()), (asked, on_host));
        assert!(size.is_met_by(on_host));
    }

    #[rstest]
    #[case(range(-1, 0), SizeError::Negative(-1))]
    #[case(range(0, -5), SizeError::Negative(-5))]
    #[case(range(2 * GIB, GIB), SizeError::LimitBelowRequired { required: 2 << 30, limit: 1 << 30 })]
    #[case(range(0, 1024), SizeError::LimitBelowSmallest(1024))]
    #[case(range(i64::MAX, 0), SizeError::TooLarge(i64::MAX as u64))]
    fn a_range_without_a_possible_size_is_refused(#[case] range: CapacityRange, #[case] error: SizeError) {
        assert_eq!(Size::of(Some(&range)), Err(error));
    }

    #[test]
    fn a_volume_of_another_size_is_another_volume() {
        let size = Size::of(Some(&range(2 * GIB, 2 * GIB))).unwrap();
        assert!(!size.is_met_by(1 << 30));
        assert!(size.is_met_by(2 << 30));
        assert!(!size.is_met_by(3 << 30));
        // without a limit a larger one will do
        assert!(Size::of(Some(&range(GIB, 0))).unwrap().is_met_by(3 << 30));
    }
}
