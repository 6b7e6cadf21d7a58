{{- /* After `helm upgrade --reuse-values` the values are those of the former chart: what that one did not have is added, in maps too.
Some maps are somebody's as a whole. In values of ours, which have podDisruptionBudget, a key that is not there was taken away with
null, and where that has a meaning it stays away. */}}
{{- define "csi.defaults" -}}
{{- $taken := list }}
{{- if hasKey .Values "podDisruptionBudget" }}{{ $taken = list "nodeSelector" "tolerations" "nodeTolerations" "resources" "hostPath" "rotate" }}{{ end }}
{{- include "csi.fill" (list .Values (.Files.Get "files/values.yaml" | fromYaml) $taken) }}
{{- end }}

{{- define "csi.fill" -}}
{{- $own := index . 0 }}
{{- $taken := index . 2 }}
{{- range $key, $value := index . 1 }}
{{- if not (hasKey $own $key) }}
{{- if not (has $key $taken) }}{{ $_ := set $own $key $value }}{{ end }}
{{- else if has $key (list "affinity" "nodeSelector" "resources" "securityContext" "global" "kube-vip") }}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $own $key)) }}{{ include "csi.fill" (list (get $own $key) $value $taken) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "csi.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "csi.selectorLabels" -}}
app.kubernetes.io/name: {{ include "csi.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "csi.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "csi.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* What stands before every image. RKE2 gives both names. */}}
{{- define "csi.registry" -}}
{{- $global := .Values.global | default dict }}
{{- $registry := dig "cattle" "systemDefaultRegistry" "" $global | default (dig "systemDefaultRegistry" "" $global) }}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end }}
{{- end }}

{{- /* An image: call with a list of its values and the root. Packages for one registry have it in the name already. */}}
{{- define "csi.image" -}}
{{- $image := index . 0 }}
{{- $root := index . 1 }}
{{- $registry := include "csi.registry" $root }}
{{- if not (hasPrefix $registry $image.repository) }}{{ $registry }}{{ end }}{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end }}

{{- /* Pull secrets as a list of objects, each name once. */}}
{{- define "csi.pullSecrets" -}}
{{- $names := list }}
{{- range concat (.Values.imagePullSecrets | default list) (dig "cattle" "imagePullSecrets" list (.Values.global | default dict) | default list) }}
{{- $names = append $names (kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") .) }}
{{- end }}
{{- range uniq $names }}
- name: {{ . | quote }}
{{- end }}
{{- end }}

{{- /* A path that ends like a kubeconfig is a file, whatever a form said of folders: its folder is mounted. */}}
{{- define "csi.isFile" -}}
{{- if hasSuffix "/" . }}
{{- else if or (has (base .) (list "cloud-config" "cloud-provider-config" "kubeconfig")) (regexMatch "\\.(ya?ml|json|conf|config|kubeconfig)$" .) }}yes{{ end }}
{{- end }}

{{- define "csi.hostFolder" -}}
{{- $path := required "no cloud-config: set cloudConfig.secretName to a Secret, or cloudConfig.hostPath to a folder of the nodes" .Values.cloudConfig.hostPath }}
{{- if not (isAbs $path) }}
{{- fail (printf "cloudConfig.hostPath %q: give an absolute path of the nodes" $path) }}
{{- end }}
{{- $folder := clean $path }}
{{- if include "csi.isFile" $path }}{{ $folder = dir $folder }}{{ end }}
{{- if regexMatch (include "csi.foldersOfTheNode" .) $folder }}
{{- fail (printf "cloudConfig.hostPath %q: its folder %s is mounted, and has all of the node or its secrets in it: put the file into a folder of its own" $path $folder) }}
{{- end }}
{{- $folder }}
{{- end }}

{{- /* Folders that no Pod needs to see. */}}
{{- define "csi.foldersOfTheNode" -}}
^/$|^/(bin|boot|dev|etc|home|lib|lib64|media|mnt|opt|proc|root|run|sbin|srv|sys|tmp|usr|var)$|^/(home|usr|run)/[^/]+$|^/etc/(rancher|ssh|ssl|systemd)(/[^/]+)?$|^/etc/kubernetes/(pki|manifests)(/.*)?$|^/var/(lib|run|log)$|^/var/lib/(kubelet|etcd|containerd|docker|rancher)$|^/var/lib/rancher/(rke2|k3s)$|^/var/lib/rancher/(rke2|k3s)/(agent|data|etc|server)$
{{- end }}

{{- define "csi.kubeconfig" -}}
{{- $path := .Values.cloudConfig.hostPath | default "" }}
{{- $file := "cloud-provider-config" }}
{{- if and (not .Values.cloudConfig.secretName) (include "csi.isFile" $path) }}{{ $file = base $path }}{{ end }}
/var/lib/harvester/{{ $file }}
{{- end }}

{{- define "csi.cloudConfigMounts" -}}
# folders, because a file or a subPath stays what it was when the container began
- {name: cloud-config, mountPath: /var/lib/harvester, readOnly: true}
{{- if not .Values.cloudConfig.secretName }}
# where the driver looks else
- {name: etc-kubernetes, mountPath: /etc/kubernetes, readOnly: true}
{{- end }}
{{- if .Values.cloudConfig.rotate }}
- {name: rotated-cloud-config, mountPath: /run/rotated-cloud-config, readOnly: true}
{{- end }}
{{- end }}

{{- define "csi.cloudConfigVolumes" -}}
- name: cloud-config
{{- if .Values.cloudConfig.secretName }}
  secret:
    secretName: {{ .Values.cloudConfig.secretName | quote }}
    optional: true # the driver says what is missing; kubelet would start none
    defaultMode: 288 # 0440, which YAML 1.2 reads as 440
    {{- with .Values.cloudConfig.secretKey }}
    items:
    - {key: {{ . | quote }}, path: cloud-provider-config}
    {{- end }}
{{- else }}
  hostPath: {path: {{ include "csi.hostFolder" . | quote }}, type: DirectoryOrCreate}
- name: etc-kubernetes
  hostPath: {path: /etc/kubernetes, type: DirectoryOrCreate}
{{- end }}
{{- if .Values.cloudConfig.rotate }}
- name: rotated-cloud-config
  secret: {secretName: harvester-csi-driver-rotated, optional: true, defaultMode: 288}
{{- end }}
{{- end }}

{{- /* Flags that the driver has in both workloads. */}}
{{- define "csi.driverArgs" -}}
- --kubeconfig={{ include "csi.kubeconfig" . | trim }}
{{- if .Values.cloudConfig.rotate }}
- --rotated-cloud-config=/run/rotated-cloud-config
{{- end }}
{{- with .Values.hostStorageClass }}
- {{ printf "--host-storage-class=%s" . | quote }}
{{- end }}
{{- with .Values.maxVolumesPerNode }}
- --max-volumes-per-node={{ . }}
{{- end }}
{{- if .Values.topology }}
- --topology
{{- end }}
- --http-endpoint=:{{ .Values.metrics.port }}
{{- end }}

{{- define "csi.driverProbes" -}}
livenessProbe:
  httpGet: {port: http, path: /livez}
  initialDelaySeconds: 10
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{- /* yes where a value that may be auto is on: call with a list of the value and the root. */}}
{{- define "csi.isOn" -}}
{{- $value := index . 0 }}
{{- $root := index . 1 }}
{{- if eq (toString $value) "true" }}yes{{ end }}
{{- if and (eq (toString $value) "auto") ($root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") }}yes{{ end }}
{{- end }}

{{- define "csi.hasSnapshots" -}}
{{- $value := toString .Values.snapshots.enabled }}
{{- if or (eq $value "true") (and (eq $value "auto") (.Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1")) }}yes{{ end }}
{{- end }}

{{- /* auto: what the class in the cluster has, and no mark is false; true where there is no class; false where another class was made
since and is the default. Of two Kubernetes takes the younger one: that of K3s, which is older, changes nothing. */}}
{{- define "csi.isDefaultClass" -}}
{{- $value := toString .Values.storageClass.isDefault }}
{{- if eq $value "auto" }}
{{- $mark := "storageclass.kubernetes.io/is-default-class" }}
{{- $ours := lookup "storage.k8s.io/v1" "StorageClass" "" "harvester" }}
{{- $value = dig "metadata" "annotations" $mark (ternary "false" "true" (not (empty $ours))) $ours }}
{{- range (lookup "storage.k8s.io/v1" "StorageClass" "" "").items }}
{{- $since := and $ours (gt .metadata.creationTimestamp (dig "metadata" "creationTimestamp" "" $ours)) }}
{{- if and $since (eq (dig "metadata" "annotations" $mark "" .) "true") }}{{ $value = "false" }}{{ end }}
{{- end }}
{{- end }}
{{- $value }}
{{- end }}

{{- /* One replica ends before the next one begins: a single node has no room for both, and helm 3 waits for the new Pod, which it
does not where one may be unavailable. Where a former chart said nothing the API server has put a rolling update there, which
server-side apply leaves and which does not go with Recreate: this upgrade takes it over, and the next one takes it away. helm 4,
which applies so, waits for every Pod. */}}
{{- define "csi.strategy" -}}
{{- $found := lookup "apps/v1" "Deployment" .Release.Namespace (printf "%s-controllers" (include "csi.name" .)) }}
{{- $rolling := dig "spec" "strategy" "rollingUpdate" dict $found }}
{{- $isDefault := and (eq (toString $rolling.maxSurge) "25%") (eq (toString $rolling.maxUnavailable) "25%") }}
{{- $isApplied := false }}
{{- range dig "metadata" "managedFields" list $found }}
{{- if eq .operation "Apply" }}{{ $isApplied = true }}{{ end }}
{{- end }}
{{- if or (gt (int .Values.replicasCount) 1) (and $isDefault $isApplied) }}
type: RollingUpdate
rollingUpdate: {maxSurge: 0, maxUnavailable: 1}
{{- else }}
type: Recreate
{{- end }}
{{- end }}
