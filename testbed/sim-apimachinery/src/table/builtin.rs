//! The columns of the built-in kinds, as data.

use jiff::Timestamp;
use serde_json::Value;

use super::{age, cells};

/// The columns that `kubectl get` prints of a kind.
pub(super) struct Printer {
    kind: &'static str,
    columns: &'static [(&'static str, Cell)],
}

/// The source of a cell. A column whose name begins with `+` is for `-o wide` only.
enum Cell {
    /// `metadata.name`.
    Name,
    /// Time since the creation.
    Age,
    /// The creation time as it is.
    Created,
    /// The text at the path, else the given one.
    Text(&'static str, &'static str),
    /// The number at the path, else 0.
    Number(&'static str),
    /// The flag at the path, else false.
    Flag(&'static str),
    /// Number of items of the list or map at the path.
    Count(&'static str),
    /// A text that needs more.
    Made(fn(&Value, Timestamp) -> String),
    /// A number in a text column.
    Counted(fn(&Value) -> u64),
}

use Cell::{Age, Count, Counted, Created, Flag, Made, Name, Number, Text};

const CONTAINERS: (&str, Cell) = ("+Containers", Made(|o, _| cells::containers(o, "name")));
const IMAGES: (&str, Cell) = ("+Images", Made(|o, _| cells::containers(o, "image")));
const SELECTOR: (&str, Cell) = ("+Selector", Made(|o, _| cells::selector(&o["spec"]["selector"])));
const ROLE: (&str, Cell) = ("Role", Made(|o, _| cells::role(o)));
const USERS: (&str, Cell) = ("+Users", Made(|o, _| cells::subjects(o, "User")));
const GROUPS: (&str, Cell) = ("+Groups", Made(|o, _| cells::subjects(o, "Group")));
const ACCOUNTS: (&str, Cell) = ("+ServiceAccounts", Made(|o, _| cells::subjects(o, "ServiceAccount")));

static PRINTERS: &[Printer] = &[
    Printer {
        kind: "Service",
        columns: &[
            ("Name", Name),
            ("Type", Text("/spec/type", "")),
            ("Cluster-IP", Text("/spec/clusterIPs/0", "<none>")),
            ("External-IP", Made(|o, _| cells::external_ip(o))),
            ("Port(s)", Made(|o, _| cells::service_ports(o))),
            ("Age", Age),
            ("+Selector", Made(|o, _| cells::labels(&o["spec"]["selector"]))),
        ],
    },
    Printer {
        kind: "Node",
        columns: &[
            ("Name", Name),
            ("Status", Made(|o, _| cells::node_status(o))),
            ("Roles", Made(|o, _| cells::node_roles(o))),
            ("Age", Age),
            ("Version", Text("/status/nodeInfo/kubeletVersion", "")),
            ("+Internal-IP", Made(|o, _| cells::node_address(o, "InternalIP"))),
            ("+External-IP", Made(|o, _| cells::node_address(o, "ExternalIP"))),
            ("+OS-Image", Text("/status/nodeInfo/osImage", "<unknown>")),
            ("+Kernel-Version", Made(|o, _| cells::kernel(o))),
            ("+Container-Runtime", Text("/status/nodeInfo/containerRuntimeVersion", "<unknown>")),
        ],
    },
    Printer {
        kind: "Pod",
        columns: &[
            ("Name", Name),
            ("Ready", Made(|o, _| cells::pod_ready(o))),
            ("Status", Made(|o, _| cells::pod_status(o))),
            ("Restarts", Made(|o, _| cells::pod_restarts(o))),
            ("Age", Age),
            ("+IP", Text("/status/podIPs/0/ip", "<none>")),
            ("+Node", Text("/spec/nodeName", "<none>")),
            ("+Nominated Node", Text("/status/nominatedNodeName", "<none>")),
            ("+Readiness Gates", Made(|o, _| cells::readiness_gates(o))),
        ],
    },
    Printer {
        kind: "Namespace",
        columns: &[("Name", Name), ("Status", Text("/status/phase", "")), ("Age", Age)],
    },
    Printer {
        kind: "ConfigMap",
        columns: &[
            ("Name", Name),
            ("Data", Counted(|o| cells::count(&o["data"]) + cells::count(&o["binaryData"]))),
            ("Age", Age),
        ],
    },
    Printer {
        kind: "Secret",
        columns: &[
            ("Name", Name),
            ("Type", Text("/type", "")),
            ("Data", Counted(|o| cells::count(&o["data"]))),
            ("Age", Age),
        ],
    },
    Printer { kind: "ServiceAccount", columns: &[("Name", Name), ("Age", Age)] },
    Printer {
        kind: "Event",
        columns: &[
            ("Last Seen", Made(cells::last_seen)),
            ("Type", Text("/type", "")),
            ("Reason", Text("/reason", "")),
            ("Object", Made(|o, _| cells::event_object(o))),
            ("+Subobject", Made(|o, _| cells::event_field_path(o))),
            ("+Source", Made(|o, _| cells::event_source(o))),
            ("Message", Made(|o, _| cells::event_message(o))),
            ("+First Seen", Made(cells::first_seen)),
            ("+Count", Counted(cells::event_count)),
            ("+Name", Name),
        ],
    },
    Printer {
        kind: "Endpoints",
        columns: &[("Name", Name), ("Endpoints", Made(|o, _| cells::endpoints(o))), ("Age", Age)],
    },
    Printer {
        kind: "EndpointSlice",
        columns: &[
            ("Name", Name),
            ("AddressType", Text("/addressType", "")),
            ("Ports", Made(|o, _| cells::slice_ports(o))),
            ("Endpoints", Made(|o, _| cells::slice_endpoints(o))),
            ("Age", Age),
        ],
    },
    Printer {
        kind: "Lease",
        columns: &[("Name", Name), ("Holder", Text("/spec/holderIdentity", "")), ("Age", Age)],
    },
    Printer {
        kind: "Deployment",
        columns: &[
            ("Name", Name),
            ("Ready", Made(|o, _| cells::ready_of(o, "/spec/replicas"))),
            ("Up-to-date", Counted(|o| cells::number(o, "/status/updatedReplicas"))),
            ("Available", Counted(|o| cells::number(o, "/status/availableReplicas"))),
            ("Age", Age),
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    },
    Printer {
        kind: "ReplicaSet",
        columns: &[
            ("Name", Name),
            ("Desired", Number("/spec/replicas")),
            ("Current", Number("/status/replicas")),
            ("Ready", Number("/status/readyReplicas")),
            ("Age", Age),
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    },
    Printer {
        kind: "DaemonSet",
        columns: &[
            ("Name", Name),
            ("Desired", Number("/status/desiredNumberScheduled")),
            ("Current", Number("/status/currentNumberScheduled")),
            ("Ready", Number("/status/numberReady")),
            ("Up-to-date", Number("/status/updatedNumberScheduled")),
            ("Available", Number("/status/numberAvailable")),
            ("Node Selector", Made(|o, _| cells::labels(&o["spec"]["template"]["spec"]["nodeSelector"]))),
            ("Age", Age),
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    },
    Printer {
        kind: "StatefulSet",
        columns: &[
            ("Name", Name),
            ("Ready", Made(|o, _| cells::ready_of(o, "/spec/replicas"))),
            ("Age", Age),
            CONTAINERS,
            IMAGES,
        ],
    },
    Printer { kind: "RoleBinding", columns: &[("Name", Name), ROLE, ("Age", Age), USERS, GROUPS, ACCOUNTS] },
    Printer {
        kind: "ClusterRoleBinding",
        columns: &[("Name", Name), ROLE, ("Age", Age), USERS, GROUPS, ACCOUNTS],
    },
    Printer {
        kind: "PersistentVolumeClaim",
        columns: &[
            ("Name", Name),
            ("Status", Made(|o, _| cells::phase(o))),
            ("Volume", Text("/spec/volumeName", "")),
            ("Capacity", Made(|o, _| cells::claim_capacity(o))),
            ("Access Modes", Made(|o, _| cells::claim_modes(o))),
            ("StorageClass", Text("/spec/storageClassName", "")),
            ("VolumeAttributesClass", Text("/spec/volumeAttributesClassName", "<unset>")),
            ("Age", Age),
            ("+VolumeMode", Text("/spec/volumeMode", "<unset>")),
        ],
    },
    Printer {
        kind: "PersistentVolume",
        columns: &[
            ("Name", Name),
            ("Capacity", Text("/spec/capacity/storage", "0")),
            ("Access Modes", Made(|o, _| cells::access_modes(&o["spec"]["accessModes"]))),
            ("Reclaim Policy", Text("/spec/persistentVolumeReclaimPolicy", "")),
            ("Status", Made(|o, _| cells::phase(o))),
            ("Claim", Made(|o, _| cells::claim(o))),
            ("StorageClass", Text("/spec/storageClassName", "")),
            ("VolumeAttributesClass", Text("/spec/volumeAttributesClassName", "<unset>")),
            ("Reason", Text("/status/reason", "")),
            ("Age", Age),
            ("+VolumeMode", Text("/spec/volumeMode", "<unset>")),
        ],
    },
    Printer {
        kind: "StorageClass",
        columns: &[
            ("Name", Made(|o, _| cells::class_name(o))),
            ("Provisioner", Text("/provisioner", "")),
            ("ReclaimPolicy", Text("/reclaimPolicy", "Delete")),
            ("VolumeBindingMode", Text("/volumeBindingMode", "Immediate")),
            ("AllowVolumeExpansion", Flag("/allowVolumeExpansion")),
            ("Age", Age),
        ],
    },
    Printer {
        kind: "CSINode",
        columns: &[("Name", Name), ("Drivers", Count("/spec/drivers")), ("Age", Age)],
    },
    Printer {
        kind: "VolumeAttachment",
        columns: &[
            ("Name", Name),
            ("Attacher", Text("/spec/attacher", "")),
            ("PV", Text("/spec/source/persistentVolumeName", "")),
            ("Node", Text("/spec/nodeName", "")),
            ("Attached", Flag("/status/attached")),
            ("Age", Age),
        ],
    },
    Printer {
        kind: "ValidatingWebhookConfiguration",
        columns: &[("Name", Name), ("Webhooks", Count("/webhooks")), ("Age", Age)],
    },
    Printer {
        kind: "MutatingWebhookConfiguration",
        columns: &[("Name", Name), ("Webhooks", Count("/webhooks")), ("Age", Age)],
    },
];

/// Roles, CRDs and whatever else has no columns of its own.
static PLAIN: Printer = Printer { kind: "", columns: &[("Name", Name), ("Created At", Created)] };

pub(super) fn of(kind: &str) -> &'static Printer {
    PRINTERS.iter().find(|printer| printer.kind == kind).unwrap_or(&PLAIN)
}

impl Printer {
    /// Name, type and priority of each column.
    pub(super) fn columns(&self) -> impl Iterator<Item = (&'static str, &'static str, i64)> {
        self.columns.iter().map(|(name, cell)| {
            let r#type = match (cell, *name) {
                (_, "AllowVolumeExpansion") => "string",
                (Number(_) | Count(_), _) => "integer",
                (Flag(_), _) => "boolean",
                (Created, _) => "date",
                _ => "string",
            };
            match name.strip_prefix('+') {
                Some(name) => (name, r#type, 1),
                None => (*name, r#type, 0),
            }
        })
    }

    pub(super) fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        self.columns.iter().map(|(_, cell)| cell.of(object, now)).collect()
    }
}

impl Cell {
    fn of(&self, object: &Value, now: Timestamp) -> Value {
        match self {
            Name => object["metadata"]["name"].as_str().unwrap_or_default().into(),
            Age => age(&object["metadata"]["creationTimestamp"], now).into(),
            Created => object["metadata"]["creationTimestamp"].clone(),
            Text(path, absent) => cells::text(object, path).unwrap_or(absent).into(),
            Number(path) => cells::number(object, path).into(),
            Flag(path) => object.pointer(path).and_then(Value::as_bool).unwrap_or_default().into(),
            Count(path) => object.pointer(path).map_or(0, cells::count).into(),
            Made(make) => make(object, now).into(),
            Counted(count) => count(object).into(),
        }
    }
}
