//! A request for a volume, checked. Pure.

use std::collections::HashMap;

use tonic::Code;

use super::super::{Settings, snapshots::handle::Handle};
use crate::{
    csi::{
        CapacityRange, CreateVolumeRequest, CreateVolumeResponse, Topology, Volume, VolumeContentSource,
        volume_content_source::Type,
    },
    guest::Guest,
    refusal::Refusal,
    volume::{
        access::{self, Access, AccessError, Reach},
        name::{HostName, NameError},
        size::{Size, SizeError},
        topology,
    },
};

/// Parameter of the guest's StorageClass: the host's StorageClass.
const HOST_CLASS: &str = "hostStorageClass";
/// Parameter of the guest's StorageClass: `filesystem` for a claim with a file system below a disk.
const HOST_VOLUME_MODE: &str = "hostVolumeMode";
/// CSI 1.12 on the size of a map.
const MAP_MAX: usize = 4096;
/// The file systems that the node service makes.
const FILE_SYSTEMS: [&str; 2] = ["ext4", "xfs"];

/// What a volume is to be.
#[derive(Clone, Debug)]
pub(in super::super) struct Asked {
    pub(in super::super) name: HostName,
    /// The name as CSI has it.
    pub(in super::super) csi_name: String,
    pub(in super::super) size: Size,
    pub(in super::super) range: Option<CapacityRange>,
    pub(in super::super) reach: Reach,
    /// The host's class, of the parameter or of the command line.
    pub(in super::super) class: Option<String>,
    /// The claim is a raw device.
    pub(in super::super) is_block: bool,
    pub(in super::super) source: Option<Source>,
    /// Where the volume may be used; everywhere where there is none.
    places: Vec<Topology>,
    parameters: HashMap<String, String>,
    content_source: Option<VolumeContentSource>,
}

/// Where the content comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Source {
    Snapshot(HostName),
    Backup { namespace: String, name: String },
    Volume(HostName),
}

impl Source {
    /// As the volume's annotation has it.
    pub(in super::super) fn record(&self) -> String {
        match self {
            Self::Snapshot(name) => format!("snapshot/{name}"),
            Self::Backup { namespace, name } => format!("snapshot/{}", Handle::backup(namespace, name)),
            Self::Volume(name) => format!("volume/{name}"),
        }
    }
}

impl From<SizeError> for Refusal {
    fn from(error: SizeError) -> Self {
        Self::new(Code::OutOfRange, error.to_string())
    }
}

impl From<NameError> for Refusal {
    fn from(error: NameError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<AccessError> for Refusal {
    fn from(error: AccessError) -> Self {
        Self::invalid(error.to_string())
    }
}

/// A file system that the node service does not make. An export has the host's.
pub(in super::super) fn unknown_file_system(reach: Reach, uses: &[Access]) -> Option<&str> {
    let mut named = uses.iter().filter_map(|one| one.mount.as_ref()?.file_system.as_deref());
    named.find(|name| reach == Reach::Disk && !FILE_SYSTEMS.contains(name))
}

impl Asked {
    /// Secrets are not used, and so neither checked nor kept.
    pub(in super::super) fn of(request: &CreateVolumeRequest, settings: &Settings) -> Result<Self, Refusal> {
        let name = HostName::of(&request.name)?;
        let size = Size::of(request.capacity_range.as_ref())?;
        let (reach, uses) = access::all(&request.volume_capabilities)?;
        if let Some(other) = unknown_file_system(reach, &uses) {
            return Err(Refusal::invalid(format!(
                "file system {other:?} is not supported: take ext4 or xfs as csi.storage.k8s.io/fstype of the StorageClass"
            )));
        }
        if !request.mutable_parameters.is_empty() {
            return Err(Refusal::invalid(
                "a volume has no parameters that change: create it without a VolumeAttributesClass",
            ));
        }
        let places = request.accessibility_requirements.iter().flat_map(|asked| &asked.requisite);
        let places: Vec<_> = places.filter(|place| !place.segments.is_empty()).cloned().collect();
        if settings.topology.is_none() && !places.is_empty() {
            return Err(Refusal::new(
                Code::ResourceExhausted,
                "a volume cannot be confined to a part of the cluster: remove allowedTopologies from the StorageClass, or \
                 start the driver with --topology",
            ));
        }
        let parameters = &request.parameters;
        if parameters.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAP_MAX {
            return Err(Refusal::invalid(format!(
                "the parameters of the StorageClass have more than {MAP_MAX} bytes: remove some"
            )));
        }
        let class = match parameters.get(HOST_CLASS) {
            Some(name) if name.is_empty() => {
                return Err(Refusal::invalid(
                    "parameter hostStorageClass of the StorageClass is empty: name a StorageClass of the host, or remove it",
                ));
            }
            Some(name) => Some(name.clone()),
            None => settings.host_storage_class.clone().filter(|name| !name.is_empty()),
        };
        let source = request.volume_content_source.as_ref().map(source).transpose()?;
        if source.is_some() && reach == Reach::Export {
            return Err(Refusal::invalid(
                "a volume for many nodes begins empty: restore into a ReadWriteOnce volume, or create one without a source",
            ));
        }
        let wants_file_system = parameters.get(HOST_VOLUME_MODE).is_some_and(|mode| mode == "filesystem");
        Ok(Self {
            name,
            csi_name: request.name.clone(),
            size,
            range: request.capacity_range,
            reach,
            class,
            is_block: reach == Reach::Disk && !wants_file_system,
            source,
            places,
            parameters: parameters.clone(),
            content_source: request.volume_content_source.clone(),
        })
    }

    /// Forgets the places that are asked for where they are the whole cluster.
    pub(in super::super) async fn confine(&mut self, guest: &Guest) -> Result<(), Refusal> {
        if self.places.is_empty() {
            return Ok(());
        }
        let nodes = guest.topologies().await;
        let nodes = nodes.map_err(|error| {
            Refusal::of_guest("list the Nodes of the guest cluster for --topology", &error)
        })?;
        self.places = topology::restricted(&self.places, &nodes)?;
        Ok(())
    }

    /// The answer for a volume of this size.
    pub(in super::super) fn answer(&self, capacity: u64) -> CreateVolumeResponse {
        let volume = Volume {
            capacity_bytes: i64::try_from(capacity).unwrap_or(i64::MAX),
            volume_id: self.name.to_string(),
            volume_context: self.parameters.clone(),
            content_source: self.content_source.clone(),
            accessible_topology: self.places.clone(),
        };
        CreateVolumeResponse { volume: Some(volume) }
    }
}

fn source(content: &VolumeContentSource) -> Result<Source, Refusal> {
    match &content.r#type {
        None => {
            Err(Refusal::invalid("the source of the volume is neither a snapshot nor a volume: say which"))
        }
        Some(Type::Snapshot(snapshot)) if snapshot.snapshot_id.is_empty() => {
            Err(Refusal::invalid("the ID of the snapshot that the volume is made of is missing"))
        }
        Some(Type::Volume(volume)) if volume.volume_id.is_empty() => {
            Err(Refusal::invalid("the ID of the volume that the volume is made of is missing"))
        }
        Some(Type::Snapshot(snapshot)) => match Handle::parse(&snapshot.snapshot_id) {
            Some(Handle::Local(name)) => Ok(Source::Snapshot(name)),
            Some(Handle::Backup { namespace, name }) => Ok(Source::Backup { namespace, name }),
            None => Err(Refusal::not_found(format!("there is no snapshot {:?}", snapshot.snapshot_id))),
        },
        Some(Type::Volume(volume)) => {
            HostName::from_handle(&volume.volume_id).map(Source::Volume).ok_or_else(|| {
                Refusal::not_found(format!(
                    "there is no volume {:?}: no claim of the host has such a name",
                    volume.volume_id
                ))
            })
        }
    }
}
