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
    #[error(
        "the volume shall have {asked} bytes, and what it is to contain has {source_size}: ask for as many"
    )]
    SmallerThanSource { asked: u64, source_size: u64 },
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

    /// The size of a volume with the content of a claim, or of a snapshot, of `source` bytes: without a wish, that.
    ///
    /// # Errors
    /// For a range without any size that such a volume may have.
    pub fn from_source(range: Option<&CapacityRange>, source: u64) -> Result<Self, SizeError> {
        let mut range = range.copied().unwrap_or_default();
        if range.required_bytes == 0 {
            range.required_bytes = i64::try_from(source).map_err(|_| SizeError::TooLarge(source))?;
        }
        let size = Self::of(Some(&range))?;
        // the rounding of the source's claim is not known to whoever asks for its size
        if size.on_host() < source {
            return Err(SizeError::SmallerThanSource { asked: size.asked, source_size: source });
        }
        Ok(size)
    }

    /// The most that the volume may have.
    #[must_use]
    pub fn limit(self) -> Option<u64> {
        self.limit
    }

    /// A larger size.
    ///
    /// # Errors
    /// Where the limit is below it.
    pub fn raised_to(self, least: u64) -> Result<Self, SizeError> {
        match self.limit {
            Some(limit) if limit < least => Err(SizeError::LimitBelowRequired { required: least, limit }),
            limit => Ok(Self { asked: least, limit }),
        }
    }

    /// What the claim asks for where its content comes from one of `source` bytes. The rounding alone is no reason for
    /// another size than the source's: Longhorn copies between equal sizes only.
    #[must_use]
    pub fn on_host_with(self, source: u64) -> u64 {
        if self.asked <= source { source } else { self.on_host() }
    }

    /// Whether a volume whose size CSI was told as `told` bytes is one of this size.
    #[must_use]
    pub fn allows(self, told: u64) -> bool {
        told >= self.asked && self.limit.is_none_or(|limit| told <= limit)
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

    #[rstest]
    #[case::no_wish(range(0, 0), Ok(2 << 30))]
    #[case::same(range(2 * GIB, 0), Ok(2 << 30))]
    #[case::larger(range(3 * GIB, 0), Ok(3 << 30))]
    #[case::smaller(range(GIB, 0), Err(SizeError::SmallerThanSource { asked: 1 << 30, source_size: 2 << 30 }))]
    #[case::limit(range(0, GIB), Err(SizeError::LimitBelowRequired { required: 2 << 30, limit: 1 << 30 }))]
    fn a_volume_is_as_large_as_what_it_is_to_contain(
        #[case] range: CapacityRange,
        #[case] expected: Result<u64, SizeError>,
    ) {
        assert_eq!(Size::from_source(Some(&range), 2 << 30).map(|size| size.asked), expected);
    }

    // docs/contract/csi-driver.md#sizes
    #[rstest]
    #[case::within_the_rounding(GIB + 1, (1 << 30) + STEP, (1 << 30) + STEP)]
    #[case::unrounded_source(GIB, (1 << 30) + 1, (1 << 30) + 1)]
    #[case::larger(2 * GIB, 1 << 30, 2 << 30)]
    fn a_copy_has_the_size_of_its_source_where_that_is_enough(
        #[case] required: i64,
        #[case] source: u64,
        #[case] expected: u64,
    ) {
        let size = Size::of(Some(&range(required, 0))).unwrap();
        assert_eq!(size.on_host_with(source), expected);
    }

    #[test]
    fn a_size_that_csi_was_told_is_within_the_limit_without_rounding() {
        let size = Size::of(Some(&range(GIB + 1, GIB + 1))).unwrap();
        assert!(size.allows((1 << 30) + 1) && !size.allows((1 << 30) + 2));
        assert!(size.is_met_by((1 << 30) + STEP));
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
