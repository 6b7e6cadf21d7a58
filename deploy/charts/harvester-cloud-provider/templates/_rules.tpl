{{- /* Made from deploy/rbac/ours.yaml by `UPDATE_CHARTS=1 cargo test --test charts`. */}}

{{- define "rules.ClusterRole.harvester-cloud-controller-manager" }}
# everything is written by patches; Services are made and ended by others
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, patch]
# patch: labels, taints and the provider ID; delete: the Node of a VM that was deleted
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [nodes/status, services/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{- define "rules.Role.harvester-cloud-controller-manager" }}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [cloud-controller-manager]
  verbs: [get, watch, update]
# no rule can name what is to be created
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
# the interfaces of networks, which Rancher offers: one ConfigMap
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [harvester-nad-mapping]
  verbs: [get, list, watch, update]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
{{- end }}

{{- define "rules.Role.harvester-cloud-controller-manager-credential" }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [harvester-cloud-provider-rotated]
  verbs: [get, update]
{{- end }}
