{{- /* Made from deploy/rbac/ours.yaml by `UPDATE_CHARTS=1 cargo test --test charts`. */}}

{{- define "rules.ClusterRole.harvester-csi-driver" }}
# get: the node ID that kubelet noted, for a start while the host is away; the node monitor and healing
- apiGroups: [storage.k8s.io]
  resources: [csinodes]
  verbs: [get, list, watch]
# who uses a volume
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get, list, watch]
# the same; patch: the attacher looks at a VolumeAttachment that changes
- apiGroups: [storage.k8s.io]
  resources: [volumeattachments]
  verbs: [list, watch, patch]
# what is wrong, where people look
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
# update: the taint of Nodes whose machines are lost. With --topology: region and zone. Only the leader writes, but in the
# Go driver's chart one DaemonSet with one account serves node and controller, and no right depends on a Lease
# (docs/storage.md, section Rights)
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch, update]
{{- end }}

{{- define "rules.Role.harvester-csi-driver" }}
# every node's driver has this role, and the Leases of Kubernetes' own controllers are there too
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [harvester-csi-attach, harvester-csi-node-monitor]
  verbs: [get, watch, update]
# no rule can name what is to be created
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
{{- end }}

{{- define "rules.Role.harvester-csi-driver-credential" }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [harvester-csi-driver-rotated]
  verbs: [get, update]
{{- end }}
