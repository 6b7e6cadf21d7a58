//! The calls of CSI, and which objects their requests name.

use prost::Message;

use crate::csi::{identity_server::SERVICE_NAME as IDENTITY, node_server::SERVICE_NAME as NODE};

/// One method of the three services.
#[derive(Debug)]
pub(super) struct Method {
    /// As gRPC has it.
    pub(super) path: &'static str,
    names: Names,
}

/// What the first fields of a request are.
#[derive(Clone, Copy, Debug)]
enum Names {
    Nothing,
    Volume,
    VolumeAndNode,
    VolumeAndSnapshot,
    Snapshot,
}

/// The objects that a request names; empty where it names none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) volume: String,
    pub(super) snapshot: String,
    pub(super) node: String,
}

/// The first field of a request, whatever else is in it.
#[derive(Clone, PartialEq, Message)]
struct First {
    #[prost(string, tag = "1")]
    name: String,
}

/// The first two fields.
#[derive(Clone, PartialEq, Message)]
struct FirstTwo {
    #[prost(string, tag = "1")]
    volume: String,
    #[prost(string, tag = "2")]
    other: String,
}

const fn of(path: &'static str, names: Names) -> Method {
    Method { path, names }
}

static METHODS: [Method; 26] = [
    of("/csi.v1.Identity/GetPluginInfo", Names::Nothing),
    of("/csi.v1.Identity/GetPluginCapabilities", Names::Nothing),
    of("/csi.v1.Identity/Probe", Names::Nothing),
    of("/csi.v1.Controller/CreateVolume", Names::Volume),
    of("/csi.v1.Controller/DeleteVolume", Names::Volume),
    of("/csi.v1.Controller/ControllerPublishVolume", Names::VolumeAndNode),
    of("/csi.v1.Controller/ControllerUnpublishVolume", Names::VolumeAndNode),
    of("/csi.v1.Controller/ValidateVolumeCapabilities", Names::Volume),
    of("/csi.v1.Controller/ListVolumes", Names::Nothing),
    of("/csi.v1.Controller/GetCapacity", Names::Nothing),
    of("/csi.v1.Controller/ControllerGetCapabilities", Names::Nothing),
    of("/csi.v1.Controller/CreateSnapshot", Names::VolumeAndSnapshot),
    of("/csi.v1.Controller/DeleteSnapshot", Names::Snapshot),
    of("/csi.v1.Controller/ListSnapshots", Names::Nothing),
    of("/csi.v1.Controller/GetSnapshot", Names::Snapshot),
    of("/csi.v1.Controller/ControllerExpandVolume", Names::Volume),
    of("/csi.v1.Controller/ControllerGetVolume", Names::Volume),
    of("/csi.v1.Controller/ControllerModifyVolume", Names::Volume),
    of("/csi.v1.Node/NodeStageVolume", Names::Volume),
    of("/csi.v1.Node/NodeUnstageVolume", Names::Volume),
    of("/csi.v1.Node/NodePublishVolume", Names::Volume),
    of("/csi.v1.Node/NodeUnpublishVolume", Names::Volume),
    of("/csi.v1.Node/NodeGetVolumeStats", Names::Volume),
    of("/csi.v1.Node/NodeExpandVolume", Names::Volume),
    of("/csi.v1.Node/NodeGetCapabilities", Names::Nothing),
    of("/csi.v1.Node/NodeGetInfo", Names::Nothing),
];

/// A path that is no method: a caller may send any, and each would be a series of its own in the metrics.
static UNKNOWN: Method = of("unknown", Names::Nothing);

/// kubelet asks for these again and again.
const QUIET: [&str; 3] = ["Probe", "NodeGetCapabilities", "NodeGetVolumeStats"];

/// No mount that waits for its server holds these up.
const ENDS: [&str; 3] = ["NodeUnpublishVolume", "NodeUnstageVolume", "NodeGetVolumeStats"];

impl Method {
    pub(super) fn of(path: &str) -> &'static Self {
        METHODS.iter().find(|method| method.path == path).unwrap_or(&UNKNOWN)
    }

    /// Whether calls that are served are of interest to nobody.
    pub(super) fn is_quiet(&self) -> bool {
        self.path.rsplit('/').next().is_some_and(|method| QUIET.contains(&method))
    }

    pub(super) fn is_of_node(&self) -> bool {
        self.is_of(NODE)
    }

    /// Whether it is what kubelet calls for a Pod that ends, or again and again.
    pub(super) fn is_end(&self) -> bool {
        self.path.rsplit('/').next().is_some_and(|method| ENDS.contains(&method))
    }

    /// A process that has much to do is no sick one: the identity service is answered always.
    pub(super) fn is_limited(&self) -> bool {
        !self.is_of(IDENTITY)
    }

    fn is_of(&self, service: &str) -> bool {
        self.path.split('/').nth(1) == Some(service)
    }

    /// The objects in a request as gRPC frames it: five bytes, then the message. Nothing where it cannot be read.
    pub(super) fn named(&self, framed: &[u8]) -> Named {
        let Some(([0, ..], message)) = framed.split_at_checked(5) else { return Named::default() };
        let first = || First::decode(message).map(|first| first.name).unwrap_or_default();
        match self.names {
            Names::Nothing => Named::default(),
            Names::Volume => Named { volume: first(), ..Named::default() },
            Names::Snapshot => Named { snapshot: first(), ..Named::default() },
            Names::VolumeAndNode => {
                let FirstTwo { volume, other: node } = FirstTwo::decode(message).unwrap_or_default();
                Named { volume, node, ..Named::default() }
            }
            Names::VolumeAndSnapshot => {
                let FirstTwo { volume, other: snapshot } = FirstTwo::decode(message).unwrap_or_default();
                Named { volume, snapshot, ..Named::default() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;

    use super::*;
    use crate::csi::{ControllerPublishVolumeRequest, CreateSnapshotRequest, NodeStageVolumeRequest};

    fn framed(message: &impl Message) -> Vec<u8> {
        let body = message.encode_to_vec();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[0], &length[..], &body].concat()
    }

    fn named(path: &str, message: &impl Message) -> (String, String) {
        let Named { volume, node, .. } = Method::of(path).named(&framed(message));
        (volume, node)
    }

    #[test]
    fn a_request_tells_its_volume_and_node_and_nothing_else() {
        let secrets = BTreeMap::from([("password".to_owned(), "geheim".to_owned())]).into_iter().collect();
        let request = ControllerPublishVolumeRequest {
            volume_id: "pvc-1".to_owned(),
            node_id: "node-a".to_owned(),
            secrets,
            ..ControllerPublishVolumeRequest::default()
        };
        let publish = "/csi.v1.Controller/ControllerPublishVolume";
        assert_eq!(named(publish, &request), ("pvc-1".to_owned(), "node-a".to_owned()));
        let request =
            NodeStageVolumeRequest { volume_id: "pvc-1".to_owned(), ..NodeStageVolumeRequest::default() };
        assert_eq!(named("/csi.v1.Node/NodeStageVolume", &request), ("pvc-1".to_owned(), String::new()));
        let request = CreateSnapshotRequest {
            source_volume_id: "pvc-1".to_owned(),
            name: "snap".to_owned(),
            ..Default::default()
        };
        let create = Method::of("/csi.v1.Controller/CreateSnapshot").named(&framed(&request));
        assert_eq!((&*create.volume, &*create.snapshot, &*create.node), ("pvc-1", "snap", ""));
    }

    #[rstest]
    #[case::empty(&[])]
    #[case::half_a_frame(&[0, 0, 0])]
    #[case::compressed(&[1, 0, 0, 0, 3, 10, 1, 97])]
    #[case::no_message(&[0, 0, 0, 0, 2, 0xff, 0xff])]
    #[case::another_type(&[0, 0, 0, 0, 2, 8, 1])]
    #[case::no_utf8(&[0, 0, 0, 0, 3, 10, 1, 0xff])]
    fn bytes_that_are_no_request_name_nothing(#[case] bytes: &[u8]) {
        assert_eq!(Method::of("/csi.v1.Controller/DeleteVolume").named(bytes), Named::default());
    }

    #[test]
    fn every_method_of_the_three_services_is_known() {
        let proto = include_str!("../../proto/csi.proto");
        let mut service = "";
        let mut known = Vec::new();
        for line in proto.lines() {
            if let Some(rest) = line.strip_prefix("service ") {
                service = rest.split(' ').next().unwrap();
            }
            if let Some(rest) = line.strip_prefix("  rpc ") {
                let method = rest.split(['(', ' ']).next().unwrap();
                if ["Identity", "Controller", "Node"].contains(&service) {
                    known.push(format!("/csi.v1.{service}/{method}"));
                }
            }
        }
        assert_eq!(METHODS.iter().map(|method| method.path).collect::<Vec<_>>(), known);
    }
}
