//! Who made a record that names a load balancer, by a fresh read of its pool. The server is asked for a VM of the name only where
//! that decides.

use std::net::IpAddr;

use harvester_api::IPPool;
use ip_pools::managers;

use crate::pool::Maker;

/// What the pool says of an address. One that is gone says nothing.
#[derive(Debug, Default)]
pub(super) struct PoolSays {
    pub(super) holder: Option<String>,
    /// [`managers::foreign`]
    pub(super) program: Option<String>,
}

impl PoolSays {
    pub(super) fn of(fresh: &IPPool, address: IpAddr) -> Self {
        Self {
            holder: ip_pools::record(fresh).holder(address).map(str::to_owned),
            program: managers::foreign(fresh, address),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The cache has a record that is gone: nobody may show the address.
    Behind,
    /// It depends on whether there is a VM of the name.
    AskForMachine,
    Is(Maker),
}

/// `own`: the holder for which the cache has the record. `has_machine`: `None` before the server was asked.
pub(super) fn judge(own: &str, says: &PoolSays, has_machine: Option<bool>) -> Verdict {
    // a pool that is made again may have another record
    if says.holder.as_deref() != Some(own) {
        return Verdict::Behind;
    }
    match (says.program.as_deref(), has_machine) {
        (None, _) => Verdict::Is(Maker::LoadBalancer),
        (Some(managers::NODE_DRIVER), _) | (Some(_), Some(true)) => Verdict::Is(Maker::Machine),
        (Some(_), None) => Verdict::AskForMachine,
        // an administrator wrote it back
        (Some(_), Some(false)) => Verdict::Is(Maker::Other),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const DRIVER: Option<&str> = Some(managers::NODE_DRIVER);
    const KUBECTL: Option<&str> = Some("kubectl");
    const WEB: Option<&str> = Some("shop/web");
    const API: Option<&str> = Some("shop/api");

    #[rstest]
    #[case::pool_is_gone(None, None, None, Verdict::Behind)]
    #[case::record_is_gone(None, KUBECTL, None, Verdict::Behind)]
    #[case::of_another_holder(API, None, None, Verdict::Behind)]
    #[case::of_another_holder_by_the_driver(API, DRIVER, None, Verdict::Behind)]
    #[case::made_by_us(WEB, None, None, Verdict::Is(Maker::LoadBalancer))]
    #[case::machine_to_come(WEB, DRIVER, None, Verdict::Is(Maker::Machine))]
    #[case::machine_is_gone(WEB, DRIVER, Some(false), Verdict::Is(Maker::Machine))]
    #[case::by_another_program(WEB, KUBECTL, None, Verdict::AskForMachine)]
    #[case::by_a_program_without_name(WEB, Some(""), None, Verdict::AskForMachine)]
    #[case::written_back_by_an_administrator(WEB, KUBECTL, Some(false), Verdict::Is(Maker::Other))]
    #[case::by_another_program_for_a_machine(WEB, KUBECTL, Some(true), Verdict::Is(Maker::Machine))]
    fn a_record_is_the_load_balancers_unless_another_program_made_it_for_a_machine(
        #[case] holder: Option<&str>,
        #[case] program: Option<&str>,
        #[case] has_machine: Option<bool>,
        #[case] expected: Verdict,
    ) {
        let [holder, program] = [holder, program].map(|text| text.map(str::to_owned));
        assert_eq!(judge("shop/web", &PoolSays { holder, program }, has_machine), expected);
    }
}
