{{- /* Made from deploy/rbac/ours.yaml by `UPDATE_CHARTS=1 cargo test --test charts`. */}}

{{- define "rules.ClusterRole.harvester-load-balancer" }}
# delete: objects of a guest cluster that is being removed; create: nothing, they belong to users and clusters
- apiGroups: [loadbalancer.harvesterhci.io]
  resources: [loadbalancers]
  verbs: [get, list, watch, update, delete]
# create: pools imported from the legacy ConfigMap
- apiGroups: [loadbalancer.harvesterhci.io]
  resources: [ippools]
  verbs: [get, list, watch, create, update]
# delete: an address is withdrawn before its record is released, not whenever garbage collection comes by
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, update, delete]
# no delete: a slice is emptied, and goes with its load balancer
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch, create, update]
# update: the finalizers that the Go program put on every VM come off
- apiGroups: [kubevirt.io]
  resources: [virtualmachineinstances, virtualmachines]
  verbs: [get, list, watch, update]
# the schema is watched: optional fields are used where it has them
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, list, watch]
# what the legacy ConfigMaps `kubevip` of all namespaces say is in use
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch]
# no backend may have the address of a host
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{- define "rules.Role.harvester-load-balancer" }}
# by name: the Leases of Kubernetes' own controllers are there too, and the ConfigMaps of CoreDNS and of the API server
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [harvester-load-balancer]
  verbs: [get, watch, update]
# no rule can name what is to be created
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [kubevip]
  verbs: [update]
{{- end }}

{{- define "rules.ClusterRole.harvester-load-balancer-webhook" }}
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations, mutatingwebhookconfigurations]
  resourceNames: [harvester-load-balancer-webhook]
  verbs: [get, list, watch, update]
# no rule can name what is to be created
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations, mutatingwebhookconfigurations]
  verbs: [create]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get, list, watch]
# who converts LoadBalancer objects of the former version
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [loadbalancers.loadbalancer.harvesterhci.io]
  verbs: [get, list, watch, update]
# the network that a new pool names
- apiGroups: [k8s.cni.cncf.io]
  resources: [network-attachment-definitions]
  verbs: [get]
# a new pool may overlap with none
- apiGroups: [loadbalancer.harvesterhci.io]
  resources: [ippools]
  verbs: [list]
- apiGroups: [kubevirt.io]
  resources: [virtualmachineinstances, virtualmachines]
  verbs: [get, list, watch]
{{- end }}

{{- define "rules.Role.harvester-load-balancer-webhook" }}
# by name: the other Secrets of Harvester are there too. No create: no rule can name what is to be created, and whoever may
# create a Secret may create a token of any account of the namespace
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [harvester-load-balancer-webhook-ca, harvester-load-balancer-webhook-tls]
  verbs: [get, list, watch, update]
{{- end }}
