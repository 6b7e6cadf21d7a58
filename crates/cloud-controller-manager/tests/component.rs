//! The cloud controller manager in a guest and a Harvester cluster, on the simulated servers and on real ones. The
//! tests play Harvester's load balancer and kube-vip themselves: what is tested is what is asked of them.

#[path = "component/event_reasons.rs"]
mod event_reasons;
#[path = "component/families.rs"]
mod families;
#[path = "component/gone_objects.rs"]
mod gone_objects;
#[path = "component/grants.rs"]
mod grants;
#[path = "component/guest_datapath.rs"]
mod guest_datapath;
#[path = "component/handover.rs"]
mod handover;
#[path = "component/harness.rs"]
mod harness;
#[path = "component/host_datapath.rs"]
mod host_datapath;
#[path = "component/leadership.rs"]
mod leadership;
#[path = "component/lifecycle.rs"]
mod lifecycle;
#[path = "component/networks.rs"]
mod networks;
#[path = "component/node_addresses.rs"]
mod node_addresses;
#[path = "component/node_labels.rs"]
mod node_labels;
#[path = "component/nodes.rs"]
mod nodes;
#[path = "component/notices.rs"]
mod notices;
#[path = "component/object_writes.rs"]
mod object_writes;
#[path = "component/outages.rs"]
mod outages;
#[path = "component/ownership.rs"]
mod ownership;
#[path = "component/refusals.rs"]
mod refusals;
#[path = "component/requested_addresses.rs"]
mod requested_addresses;
#[path = "component/requests.rs"]
mod requests;
#[path = "component/rotation.rs"]
mod rotation;
#[path = "component/service_events.rs"]
mod service_events;
#[path = "component/sharing.rs"]
mod sharing;
#[path = "component/sharing_labels.rs"]
mod sharing_labels;
#[path = "component/sharing_moves.rs"]
mod sharing_moves;
#[path = "component/source_ranges.rs"]
mod source_ranges;
#[path = "component/take_over.rs"]
mod take_over;
#[path = "component/unreliable_harvester.rs"]
mod unreliable_harvester;
#[path = "component/vm_watches.rs"]
mod vm_watches;
