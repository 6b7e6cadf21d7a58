//! Settings without an object of their own are annotations `sim.harvesterhci.io/…`: on a VM or its instance how the guest
//! in it behaves, on a Setting how the network around it does. On an instance an annotation wins over its VM's. A VM may
//! have it as a label instead, which the node driver can be asked for before there is a VM.

pub(crate) mod follow;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use serde::Deserialize;

/// The prefix of all annotations.
const PREFIX: &str = "sim.harvesterhci.io/";
/// `silent`: the guest agent does not answer, so the instance has neither addresses nor guest information.
pub const AGENT: &str = "sim.harvesterhci.io/agent";
/// `ok`, `stopped`, `refusing`, `slow=2s`: see [`Backend`].
pub const BACKEND: &str = "sim.harvesterhci.io/backend";
/// `"false"`: the VM is not Ready, as if its kubelet had died.
pub const READY: &str = "sim.harvesterhci.io/ready";
/// `stuck`: volumes asked for are never mounted, and those that are in stay in, as with a virt-handler that hangs.
/// `slow=8s`: a pod that brings volumes takes so long to start. On a claim `stuck`: no pod that has it starts.
pub const HOTPLUG: &str = "sim.harvesterhci.io/hotplug";
/// On a migration `stuck`: it begins, and does not end.
pub const MIGRATION: &str = "sim.harvesterhci.io/migration";
/// On a StorageClass, with any value: no volume of it is made, as where no disk has room.
pub const FULL: &str = "sim.harvesterhci.io/full";
/// On a VolumeRemoteBackup or a VolumeRemoteRestore: why it does not succeed.
pub const FAILS: &str = "sim.harvesterhci.io/fails";
/// The VM's address, chosen at its first start and kept from then on; may be set beforehand.
pub const ADDRESS: &str = "sim.harvesterhci.io/address";
/// Further addresses of the VM by network, which its guest agent reports and nothing answers at: JSON.
pub const ADDRESSES: &str = "sim.harvesterhci.io/addresses";
/// On a Setting: JSON, see [`Dhcp`].
pub const DHCP: &str = "sim.harvesterhci.io/dhcp";
/// On a Setting: the version of kube-vip in the guest.
pub const GUEST_VIP: &str = "sim.harvesterhci.io/guest-kube-vip";

/// Every annotation with the kinds that it goes on, its values and what they do: for people who ask for help.
pub const HELP: [(&str, &str, &str); 11] = [
    (
        AGENT,
        "VirtualMachine (also as a label), VirtualMachineInstance",
        "silent | ok: whether the guest agent answers",
    ),
    (
        BACKEND,
        "VirtualMachine, VirtualMachineInstance",
        "ok | stopped | refusing | slow=2s: how the vm's server, pods and node ports answer \
         (stopped: connection attempts time out; refusing: they are reset)",
    ),
    (READY, "VirtualMachine, VirtualMachineInstance", "\"false\" | \"true\": as if its kubelet had died"),
    (
        HOTPLUG,
        "VirtualMachine, VirtualMachineInstance; PersistentVolumeClaim",
        "stuck | ok: whether volumes come in and go out; slow=8s: how long the pod that brings them takes",
    ),
    (MIGRATION, "VirtualMachineInstanceMigration", "stuck | ok: whether it ends once it has begun"),
    (FULL, "StorageClass", "any value: no volume of the class is made"),
    (FAILS, "VolumeRemoteBackup, VolumeRemoteRestore", "a sentence: why it does not succeed"),
    (
        ADDRESS,
        "VirtualMachine",
        "an address of 198.18.0.0/16: chosen at the first start unless it is there already",
    ),
    (
        ADDRESSES,
        "VirtualMachine",
        r#"{"nic-1": ["10.20.0.11", "fd00::11"]}: further addresses by network, that the guest agent reports"#,
    ),
    (
        DHCP,
        "Setting",
        r#"{"pool": "127.7.0.100-127.7.0.200", "leaseSeconds": 60, "silent": false}: the DHCP server for VIPs"#,
    ),
    (GUEST_VIP, "Setting", "a version such as 0.8.1: kube-vip in the guest is one that behaves as that did"),
];

/// How everything that listens in a VM answers: its own server, its pods, its node ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// Answers at once.
    #[default]
    Ok,
    /// Does not answer any more: a connection attempt ends in a time-out, as with a VM that hangs.
    Stopped,
    /// Refuses connections: the VM is there, the server is not.
    Refusing,
    /// Takes connections at once and answers requests so much later.
    Slow(Duration),
}

/// How one VM behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    pub agent_answers: bool,
    pub backend: Backend,
    pub ready: bool,
    pub hotplug_works: bool,
    /// A pod that brings volumes takes so long to start.
    pub hotplug_takes: Duration,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            agent_answers: true,
            backend: Backend::Ok,
            ready: true,
            hotplug_works: true,
            hotplug_takes: Duration::ZERO,
        }
    }
}

/// An annotation that says nothing that we know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    #[error("annotation {key}: {value:?} is none of {known}; it is ignored")]
    Value { key: &'static str, value: String, known: &'static str },
    /// It is misspelt, or belongs on another kind.
    #[error("annotation {key} is ignored: a {kind} obeys {known}")]
    Key { key: String, kind: &'static str, known: String },
}

impl Unknown {
    /// The reason of the Event that tells it.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Value { .. } => "UnknownValue",
            Self::Key { .. } => "UnknownKey",
        }
    }
}

/// Those of `keys` that have our prefix and are none of the annotations that a `kind` obeys.
fn foreign<'a>(kind: &'static str, keys: impl Iterator<Item = &'a String>) -> impl Iterator<Item = Unknown> {
    let known: Vec<_> =
        HELP.iter().filter(|(_, kinds, _)| kinds.contains(kind)).map(|(key, ..)| *key).collect();
    let foreign: BTreeSet<_> =
        keys.filter(|key| key.starts_with(PREFIX) && !known.contains(&key.as_str())).collect();
    foreign.into_iter().map(move |key| Unknown::Key { key: key.clone(), kind, known: known.join(", ") })
}

impl Behaviour {
    /// Reads the annotations of an instance and its VM, the former first. What cannot be read is reported and
    /// counts as absent.
    pub fn read(layers: &[&BTreeMap<String, String>]) -> (Self, Vec<Unknown>) {
        let mut unknown = Vec::new();
        let hotplug = read(layers, &mut unknown, HOTPLUG, "ok, stuck, slow=8s", |value| match value {
            "stuck" => Some((false, Duration::ZERO)),
            "ok" => Some((true, Duration::ZERO)),
            _ => Some((true, duration(value.strip_prefix("slow=")?)?)),
        });
        let (hotplug_works, hotplug_takes) = hotplug.unwrap_or((true, Duration::ZERO));
        let behaviour = Self {
            agent_answers: read(layers, &mut unknown, AGENT, "ok, silent", |value| match value {
                "silent" => Some(false),
                "ok" => Some(true),
                _ => None,
            })
            .unwrap_or(true),
            backend: read(layers, &mut unknown, BACKEND, "ok, stopped, refusing, slow=2s", Backend::parse)
                .unwrap_or_default(),
            ready: read(layers, &mut unknown, READY, "true, false", |value| value.parse().ok())
                .unwrap_or(true),
            hotplug_works,
            hotplug_takes,
        };
        unknown.extend(foreign("VirtualMachine", layers.iter().flat_map(|layer| layer.keys())));
        (behaviour, unknown)
    }
}

/// The addresses of [`ADDRESSES`].
pub(crate) fn further_addresses(
    annotations: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, Vec<IpAddr>>, Unknown> {
    let Some(value) = annotations.get(ADDRESSES) else { return Ok(BTreeMap::new()) };
    let known = r#"objects such as {"nic-1": ["10.20.0.11"]}"#;
    serde_json::from_str(value).map_err(|_| Unknown::Value { key: ADDRESSES, value: value.clone(), known })
}

/// The first layer that has the key decides, also when its value cannot be read.
fn read<T>(
    layers: &[&BTreeMap<String, String>],
    unknown: &mut Vec<Unknown>,
    key: &'static str,
    known: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Option<T> {
    let value = layers.iter().find_map(|layer| layer.get(key))?;
    let parsed = parse(value.trim());
    if parsed.is_none() {
        unknown.push(Unknown::Value { key, value: value.clone(), known });
    }
    parsed
}

impl Backend {
    /// Reads an annotation's value; the duration of `slow` is seconds, or has a unit `ms`, `s` or `m`.
    pub fn parse(value: &str) -> Option<Self> {
        match value {
            "ok" => Some(Self::Ok),
            "stopped" => Some(Self::Stopped),
            "refusing" => Some(Self::Refusing),
            _ => duration(value.strip_prefix("slow=")?).map(Self::Slow),
        }
    }

    /// The annotation's value that [`Backend::parse`] reads back.
    pub fn text(self) -> String {
        match self {
            Self::Ok => "ok".to_owned(),
            Self::Stopped => "stopped".to_owned(),
            Self::Refusing => "refusing".to_owned(),
            Self::Slow(delay) => format!("slow={}ms", delay.as_millis()),
        }
    }

    /// Whether a readiness probe of the kubelet would succeed.
    pub fn is_serving(self) -> bool {
        matches!(self, Self::Ok | Self::Slow(_))
    }
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    match &text[digits..] {
        "ms" => Some(Duration::from_millis(number)),
        "s" | "" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_secs(number.checked_mul(60)?)),
        _ => None,
    }
}

/// The DHCP server of the network that the VIPs are on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Dhcp {
    /// First and last address that it gives, `a-b`.
    #[serde(deserialize_with = "range")]
    pub pool: (Ipv4Addr, Ipv4Addr),
    /// Length of a lease.
    #[serde(default = "one_hour")]
    pub lease_seconds: u32,
    /// It hears and does not answer.
    #[serde(default)]
    pub silent: bool,
}

fn one_hour() -> u32 {
    3600
}

fn range<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<(Ipv4Addr, Ipv4Addr), D::Error> {
    let text = String::deserialize(deserializer)?;
    let ends = text.split_once('-').and_then(|(first, last)| {
        let ends: (Ipv4Addr, Ipv4Addr) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (ends.0 <= ends.1).then_some(ends)
    });
    ends.ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a range of addresses `first-last`")))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::ok("ok", Some(Backend::Ok))]
    #[case::stopped("stopped", Some(Backend::Stopped))]
    #[case::refusing("refusing", Some(Backend::Refusing))]
    #[case::slow_with_unit("slow=2s", Some(Backend::Slow(Duration::from_secs(2))))]
    #[case::slow_in_milliseconds("slow=250ms", Some(Backend::Slow(Duration::from_millis(250))))]
    #[case::slow_without_unit("slow=3", Some(Backend::Slow(Duration::from_secs(3))))]
    #[case::slow_without_number("slow=s", None)]
    #[case::unknown("broken", None)]
    fn reads_a_backend(#[case] value: &str, #[case] expected: Option<Backend>) {
        assert_eq!(Backend::parse(value), expected);
        if let Some(backend) = expected {
            assert_eq!(Backend::parse(&backend.text()), expected);
        }
    }

    fn layer(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_instance_wins_over_its_vm_key_by_key() {
        let vm = layer(&[(BACKEND, "stopped"), (READY, "false")]);
        let instance = layer(&[(BACKEND, "ok"), (AGENT, "silent")]);
        let (behaviour, unknown) = Behaviour::read(&[&instance, &vm]);
        let expected = Behaviour { agent_answers: false, ready: false, ..Behaviour::default() };
        assert_eq!((behaviour, unknown), (expected, vec![]));
    }

    #[test]
    fn what_cannot_be_read_is_reported_and_counts_as_absent() {
        let (behaviour, unknown) = Behaviour::read(&[&layer(&[(BACKEND, "tired"), (READY, "maybe")])]);
        assert_eq!(behaviour, Behaviour::default());
        let told: Vec<_> = unknown.iter().map(ToString::to_string).collect();
        let expected = [
            r#"annotation sim.harvesterhci.io/backend: "tired" is none of ok, stopped, refusing, slow=2s; it is ignored"#,
            r#"annotation sim.harvesterhci.io/ready: "maybe" is none of true, false; it is ignored"#,
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_key_of_ours_that_no_vm_obeys_is_reported_once() {
        let vm =
            layer(&[("sim.harvesterhci.io/backnd", "stopped"), (DHCP, "{}"), ("example.com/backnd", "x")]);
        let instance = layer(&[("sim.harvesterhci.io/backnd", "stopped"), (ADDRESS, "198.18.0.1")]);
        let (behaviour, unknown) = Behaviour::read(&[&instance, &vm]);
        assert_eq!(behaviour, Behaviour::default());
        let [misspelt, elsewhere] = &*unknown else { panic!("{unknown:?}") };
        assert!(
            misspelt.to_string().starts_with("annotation sim.harvesterhci.io/backnd is ignored"),
            "{misspelt}"
        );
        assert!(misspelt.to_string().contains(BACKEND), "{misspelt}");
        assert!(
            elsewhere.to_string().starts_with("annotation sim.harvesterhci.io/dhcp is ignored"),
            "{elsewhere}"
        );
    }

    #[test]
    fn further_addresses_that_cannot_be_read_are_reported() {
        let read = |value| further_addresses(&layer(&[(ADDRESSES, value)])).map(|nics| nics.len());
        assert_eq!(read(r#"{"nic-1": ["10.20.0.11", "fd00::11"]}"#), Ok(1));
        let told = read(r#"{"nic-1": ["ten"]}"#).unwrap_err().to_string();
        assert!(told.contains("is none of objects such as"), "{told}");
    }

    #[test]
    fn the_dhcp_setting_has_a_range_and_defaults() {
        let dhcp: Dhcp = serde_json::from_str(r#"{"pool": "127.77.0.10-127.77.0.20"}"#).unwrap();
        let pool = (Ipv4Addr::new(127, 77, 0, 10), Ipv4Addr::new(127, 77, 0, 20));
        assert_eq!(dhcp, Dhcp { pool, lease_seconds: 3600, silent: false });
        let error = serde_json::from_str::<Dhcp>(r#"{"pool": "127.77.0.20-127.77.0.10"}"#).unwrap_err();
        assert!(error.to_string().contains("not a range"), "{error}");
    }
}
