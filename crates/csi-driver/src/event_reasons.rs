//! The reasons of the Events of the CSI driver.

use controller_kit::{EventReason, EventReasons};

use crate::{attach::moved, cli::PROGRAM, host::missing, lease, node};

const ATTACHMENT: &[&str] = &["VolumeAttachment", "PersistentVolumeClaim"];
const NODE: &[&str] = &["Node"];
const POD: &[&str] = &["Pod"];

/// The reasons that this crate gives.
pub const EVENT_REASONS: &[EventReasons] = &[
    EventReasons {
        component: PROGRAM,
        reasons: &[
            EventReason::warning(
                moved::REASON,
                &["PersistentVolumeClaim"],
                "the NFS export of the volume has another address than Nodes have mounted",
                "end all Pods that use it on the Nodes that the message names, then start them again",
            ),
            EventReason::warning(
                "CloudConfigNotUsed",
                POD,
                "the changed kubeconfig of the host is of no use, and the former one goes on",
                "correct it",
            ),
            EventReason::warning(
                "CredentialExpired",
                POD,
                "the credential for the host has ended",
                "replace the kubeconfig",
            ),
            EventReason::warning(
                "CredentialExpires",
                POD,
                "the credential for the host ends within 14 days, 7 days, one day",
                "replace the kubeconfig",
            ),
            EventReason::warning(
                "CredentialNotRotated",
                POD,
                "the token for the host is due, and no newer one could be asked for or written",
                "grant what the message names; it is tried again by itself",
            ),
            EventReason::normal(
                "CredentialRotated",
                POD,
                "the token for the host was renewed before its end",
                "none",
            ),
            EventReason::warning(
                missing::REASON,
                POD,
                "Harvester or the guest cluster refused a right, and what is off without it",
                "grant it as the message says; nothing has to be restarted",
            ),
            EventReason::warning(
                node::NO_TOPOLOGY,
                POD,
                "with `--topology`, the Node has neither of the labels of region and zone",
                "label the Node, then delete the driver's Pod on it",
            ),
            EventReason::warning(
                "VolumeInTwoMachines",
                ATTACHMENT,
                "the volume is in two machines, and each has a VolumeAttachment",
                "end one of the Pods, and check the file system",
            ),
            EventReason::warning(
                "VolumeNotAttached",
                ATTACHMENT,
                "the volume is not where a VolumeAttachment wants it",
                "what the message says",
            ),
            EventReason::warning(
                "VolumeNotDetached",
                ATTACHMENT,
                "the volume does not leave a machine",
                "what the message says",
            ),
        ],
    },
    EventReasons {
        component: lease::NODE_MONITOR,
        reasons: &[
            EventReason::warning(
                "MachineUnknown",
                NODE,
                "the Node is not ready, and whether its machine runs is not known",
                "what the message says; if nothing of the machine runs, set the taint by hand",
            ),
            EventReason::normal("NodeInService", NODE, "the Node is ready again, the taint is removed", ""),
            EventReason::warning(
                "NodeOutOfService",
                NODE,
                "the Node has the taint of a lost machine, and how the machine is lost",
                "none: its Pods go to other Nodes",
            ),
            EventReason::warning(
                "NodeStaysOutOfService",
                NODE,
                "the Node is ready, and has the taint from somebody else",
                "`kubectl taint node NAME node.kubernetes.io/out-of-service-`",
            ),
            EventReason::warning(
                "TaintRefused",
                NODE,
                "the right to update Nodes is missing, so the taint does not come or go",
                "grant it; it is asked for every 30 s",
            ),
        ],
    },
];
