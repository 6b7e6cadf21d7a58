//! Where a decision about an object has its Service and its slice from: caches, or the server where caches know nothing.
//!
//! The watch tells only of those with our label: one of somebody else's, and one of ours that lost the label, is known by a
//! read alone. It is read where it can matter, because each read is a request for each look.

use harvester_api::WorkloadType;

/// What is known of an object without a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cached {
    /// `None`: the object is gone.
    pub(super) workload: Option<WorkloadType>,
    pub(super) address: Address,
    pub(super) records: Records,
    pub(super) service: CachedService,
    /// The slice in the cache is not whole.
    pub(super) is_slice_trimmed: bool,
    /// A Service of the name was read a short while ago, and is somebody else's.
    pub(super) is_strangers: bool,
}

/// Where the object's address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    None,
    OfPool,
    Dhcp,
}

/// What the pools record for the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Records {
    None,
    /// One, made just now for an object that had none.
    New,
    /// Others too. They may be those of an object that was made again, and its predecessor's Service may have lost our
    /// label.
    Older,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CachedService {
    None,
    /// Without what only a write needs.
    Trimmed,
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// What the cache has, be it nothing.
    Cache,
    /// The same if it is whole, else the server's.
    Read,
    /// The Service of somebody else that was read a short while ago.
    Stranger,
}

/// Where the Service is taken from. One that may be written is whole.
pub(super) fn of_service(cached: &Cached) -> Source {
    let is_vm = cached.workload == Some(WorkloadType::Vm);
    let gets_an_address =
        cached.workload.is_some() && cached.address != Address::OfPool && cached.records != Records::None;
    let is_read = cached.service == CachedService::Trimmed
        || needs_service(cached)
        || gets_an_address && (is_vm || cached.records == Records::Older);
    let is_standing_in =
        cached.is_strangers && cached.workload.is_some() && cached.service == CachedService::None;
    match (is_read, is_standing_in) {
        (false, _) => Source::Cache,
        (true, false) => Source::Read,
        (true, true) => Source::Stranger,
    }
}

/// Where the slice is taken from, once the Service is known. Behind a stranger's Service none is made. One that may be written is
/// whole.
pub(super) fn of_slice(cached: &Cached, of_service: Source, is_service_there: bool) -> Source {
    let is_vm = cached.workload == Some(WorkloadType::Vm);
    let needs_slice = needs_service(cached) || is_vm && (cached.records != Records::None || is_service_there);
    let is_read =
        needs_slice && of_service != Source::Stranger || cached.is_slice_trimmed && cached.workload.is_some();
    if is_read { Source::Read } else { Source::Cache }
}

/// An object of type vm that has an address: its Service and slice are there or to be made.
fn needs_service(cached: &Cached) -> bool {
    cached.workload == Some(WorkloadType::Vm) && cached.address != Address::None
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const VM: Option<WorkloadType> = Some(WorkloadType::Vm);
    const CLUSTER: Option<WorkloadType> = Some(WorkloadType::Cluster);

    #[rstest]
    #[case::gone(None, Address::None, Records::Older, CachedService::Whole, Source::Cache, Source::Cache)]
    #[case::gone_and_trimmed(
        None,
        Address::None,
        Records::None,
        CachedService::Trimmed,
        Source::Read,
        Source::Cache
    )]
    #[case::cluster_waits(
        CLUSTER,
        Address::None,
        Records::None,
        CachedService::None,
        Source::Cache,
        Source::Cache
    )]
    #[case::cluster_just_recorded(
        CLUSTER,
        Address::None,
        Records::New,
        CachedService::None,
        Source::Cache,
        Source::Cache
    )]
    #[case::cluster_made_again(
        CLUSTER,
        Address::None,
        Records::Older,
        CachedService::None,
        Source::Read,
        Source::Cache
    )]
    #[case::cluster_with_dhcp_made_again(
        CLUSTER,
        Address::Dhcp,
        Records::Older,
        CachedService::None,
        Source::Read,
        Source::Cache
    )]
    #[case::cluster_settled(
        CLUSTER,
        Address::OfPool,
        Records::Older,
        CachedService::None,
        Source::Cache,
        Source::Cache
    )]
    #[case::vm_waits(VM, Address::None, Records::None, CachedService::None, Source::Cache, Source::Cache)]
    #[case::vm_waits_beside_a_service(
        VM,
        Address::None,
        Records::None,
        CachedService::Whole,
        Source::Cache,
        Source::Read
    )]
    #[case::vm_just_recorded(
        VM,
        Address::None,
        Records::New,
        CachedService::None,
        Source::Read,
        Source::Read
    )]
    #[case::vm_settled(VM, Address::OfPool, Records::Older, CachedService::Whole, Source::Read, Source::Read)]
    #[case::vm_with_dhcp(VM, Address::Dhcp, Records::None, CachedService::None, Source::Read, Source::Read)]
    fn a_service_and_a_slice_are_read_where_they_can_matter(
        #[case] workload: Option<WorkloadType>,
        #[case] address: Address,
        #[case] records: Records,
        #[case] service: CachedService,
        #[case] expected: Source,
        #[case] slice: Source,
    ) {
        let cached =
            Cached { workload, address, records, service, is_slice_trimmed: false, is_strangers: false };
        assert_eq!(of_service(&cached), expected);
        assert_eq!(of_slice(&cached, expected, service != CachedService::None), slice);

        let cached = Cached { is_strangers: true, ..cached };
        let stands_in = workload.is_some() && expected == Source::Read && service == CachedService::None;
        assert_eq!(of_service(&cached), if stands_in { Source::Stranger } else { expected });
        if stands_in {
            assert_eq!(of_slice(&cached, Source::Stranger, true), Source::Cache);
        }

        let cached = Cached { is_slice_trimmed: true, ..cached };
        let whole = if workload.is_some() { Source::Read } else { slice };
        for of_service in [Source::Cache, Source::Read, Source::Stranger] {
            assert_eq!(of_slice(&cached, of_service, false), whole, "one that may be written is whole");
        }
    }
}
