{{- /* After `helm upgrade --reuse-values` the values are those of the former chart: what that one did not have is added, in maps too.
Some maps are somebody's as a whole. In values of ours, which have podDisruptionBudget, a key that is not there was taken away with
null, and where that has a meaning it stays away. */}}
{{- define "ccm.defaults" -}}
{{- $taken := list }}
{{- if hasKey .Values "podDisruptionBudget" }}{{ $taken = list "affinity" "nodeSelector" "tolerations" "resources" "priorityClassName" "cloudConfigPath" "hostPath" "rotate" }}{{ end }}
{{- include "ccm.fill" (list .Values (.Files.Get "files/values.yaml" | fromYaml) $taken) }}
{{- end }}

{{- define "ccm.fill" -}}
{{- $own := index . 0 }}
{{- $taken := index . 2 }}
{{- range $key, $value := index . 1 }}
{{- if not (hasKey $own $key) }}
{{- if not (has $key $taken) }}{{ $_ := set $own $key $value }}{{ end }}
{{- else if has $key (list "affinity" "nodeSelector" "resources" "securityContext" "global" "kube-vip") }}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $own $key)) }}{{ include "ccm.fill" (list (get $own $key) $value $taken) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "ccm.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "ccm.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ccm.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "ccm.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "ccm.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "ccm.serviceAccount" -}}
{{ default (include "ccm.name" .) (dig "name" "" (.Values.serviceAccount | default dict)) }}
{{- end }}

{{- /* What stands before every image. RKE2 gives both names. */}}
{{- define "ccm.registry" -}}
{{- $global := .Values.global | default dict }}
{{- $registry := dig "cattle" "systemDefaultRegistry" "" $global | default (dig "systemDefaultRegistry" "" $global) }}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end }}
{{- end }}

{{- /* An image: call with a list of its values and the root. Packages for one registry have it in the name already. */}}
{{- define "ccm.image" -}}
{{- $image := index . 0 }}
{{- $root := index . 1 }}
{{- $registry := include "ccm.registry" $root }}
{{- if not (hasPrefix $registry $image.repository) }}{{ $registry }}{{ end }}{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end }}

{{- /* Pull secrets as a list of objects, each name once. */}}
{{- define "ccm.pullSecrets" -}}
{{- $names := list }}
{{- range concat (.Values.imagePullSecrets | default list) (dig "cattle" "imagePullSecrets" list (.Values.global | default dict) | default list) }}
{{- $names = append $names (kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") .) }}
{{- end }}
{{- range uniq $names }}
- name: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "ccm.clusterName" -}}
{{ dig "cattle" "clusterName" "" (.Values.global | default dict) | default .Values.clusterName }}
{{- end }}

{{- /* The file on the nodes, or the folder that it is in, with a slash at its end; empty where a Secret has it. */}}
{{- define "ccm.file" -}}
{{- $config := .Values.cloudConfig | default dict }}
{{- if not $config.secretName }}
{{- $given := .Values.cloudConfigPath | default $config.hostPath }}
{{- if not $given }}
{{- fail "no cloud-config: set cloudConfig.secretName to a Secret, or cloudConfigPath to a file on the nodes" }}
{{- end }}
{{- if not (isAbs $given) }}
{{- fail (printf "cloudConfigPath %q: give an absolute path of the nodes" $given) }}
{{- end }}
{{- $file := clean $given }}
{{- if eq $file "/etc/kubernetes" }}{{ $file = "/etc/kubernetes/cloud-config" }}
{{- else if eq $file "/var/lib/rancher/rke2/etc/config-files" }}{{ $file = printf "%s/cloud-provider-config" $file }}
{{- else if hasSuffix "/" $given }}{{ $file = printf "%s/" $file }}
{{- end }}
{{- $folder := include "ccm.folder" $file }}
{{- if regexMatch (include "ccm.foldersOfTheNode" .) $folder }}
{{- fail (printf "cloudConfigPath %q: its folder %s is mounted, and has all of the node or its secrets in it: put the file into a folder of its own; a folder ends with a slash" $given $folder) }}
{{- end }}
{{- $file }}
{{- end }}
{{- end }}

{{- /* The folder that is mounted. */}}
{{- define "ccm.folder" -}}
{{- if hasSuffix "/" . }}{{ trimSuffix "/" . | default "/" }}{{ else }}{{ dir . }}{{ end }}
{{- end }}

{{- /* Folders that no Pod needs to see. */}}
{{- define "ccm.foldersOfTheNode" -}}
^/$|^/(bin|boot|dev|etc|home|lib|lib64|media|mnt|opt|proc|root|run|sbin|srv|sys|tmp|usr|var)$|^/(home|usr|run)/[^/]+$|^/etc/(rancher|ssh|ssl|systemd)(/[^/]+)?$|^/etc/kubernetes/(pki|manifests)(/.*)?$|^/var/(lib|run|log)$|^/var/lib/(kubelet|etcd|containerd|docker|rancher)$|^/var/lib/rancher/(rke2|k3s)$|^/var/lib/rancher/(rke2|k3s)/(agent|data|etc|server)$
{{- end }}

{{- /* Generators and charts disagree about these two: for either, both are looked at. */}}
{{- define "ccm.isUsualFile" -}}
{{- if has . (list "/etc/kubernetes/cloud-config" "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config") }}yes{{ end }}
{{- end }}

{{- /* What the Deployment in the cluster has; without one, this is a first install, also where helm calls it an upgrade, because
the first attempt failed or a release that was there gets this chart. Nobody knows where helm cannot ask the cluster. */}}
{{- define "ccm.dataPath" -}}
{{- if .Values.dataPath }}
{{- .Values.dataPath }}
{{- else }}
{{- $found := "" }}
{{- $deployment := lookup "apps/v1" "Deployment" .Release.Namespace (include "ccm.name" .) }}
{{- range dig "spec" "template" "spec" "containers" list $deployment }}
{{- range .args }}
{{- if hasPrefix "--data-path=" . }}{{ $found = trimPrefix "--data-path=" . }}{{ end }}
{{- end }}
{{- end }}
{{- if $found }}
{{- $found }}
{{- else if or $deployment (and .Release.IsUpgrade (empty (lookup "v1" "Namespace" "" "kube-system"))) }}
{{- "guest" }}
{{- else }}
{{- "annotation" }}
{{- end }}
{{- end }}
{{- end }}

{{- /* yes where a value that may be auto is on: call with a list of the value and the root. */}}
{{- define "ccm.isOn" -}}
{{- $value := index . 0 }}
{{- $root := index . 1 }}
{{- if eq (toString $value) "true" }}yes{{ end }}
{{- if and (eq (toString $value) "auto") ($root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") }}yes{{ end }}
{{- end }}

{{- /* The value of a flag in extraArgs, in one word or two: call with a list of its name, what it is without, and the root. */}}
{{- define "ccm.flag" -}}
{{- $name := index . 0 }}
{{- $value := index . 1 }}
{{- $isNext := false }}
{{- range (index . 2).Values.extraArgs }}
{{- $arg := toString . }}
{{- if $isNext }}{{ $value = $arg }}{{ $isNext = false }}
{{- else if has $arg (list (printf "--%s" $name) (printf "-%s" $name)) }}{{ $isNext = true }}
{{- else if regexMatch (printf "^--?%s=" $name) $arg }}{{ $value = regexReplaceAll "^[^=]*=" $arg "" }}
{{- end }}
{{- end }}
{{- $value }}
{{- end }}

{{- /* host and port of health as YAML; empty where nobody can tell. 127.0.0.1 is the node's: the Pod is in its network. */}}
{{- define "ccm.health" -}}
{{- $port := include "ccm.flag" (list "secure-port" "10258" .) | int }}
{{- $host := include "ccm.flag" (list "bind-address" "0.0.0.0" .) }}
{{- if has $host (list "" "0.0.0.0" "::") }}{{ $host = "127.0.0.1" }}{{ end }}
{{- if and $port (regexMatch "^[0-9a-fA-F.:]+$" $host) -}}
host: {{ $host | quote }}, port: {{ $port }}
{{- end }}
{{- end }}

{{- /* One replica ends before the next one begins: a single node has no room for both, and helm 3 waits for the new Pod, which it
does not where one may be unavailable. Where a former chart said nothing the API server has put a rolling update there, which
server-side apply leaves and which does not go with Recreate: this upgrade takes it over, and the next one takes it away. helm 4,
which applies so, waits for every Pod. */}}
{{- define "ccm.strategy" -}}
{{- $found := lookup "apps/v1" "Deployment" .Release.Namespace (include "ccm.name" .) }}
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
