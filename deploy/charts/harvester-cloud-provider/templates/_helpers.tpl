{{- /* After `helm upgrade --reuse-values` the values are those of the former chart: what that one did not have is added. */}}
{{- define "ccm.defaults" -}}
{{- range $key, $value := .Files.Get "files/values.yaml" | fromYaml }}
{{- if not (hasKey $.Values $key) }}{{ $_ := set $.Values $key $value }}{{ end }}
{{- end }}
{{- end }}

{{- define "ccm.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "ccm.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ccm.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
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

{{- /* Pull secrets as a list of objects, each name once. */}}
{{- define "ccm.pullSecrets" -}}
{{- $names := list }}
{{- range concat (.Values.imagePullSecrets | default list) (dig "cattle" "imagePullSecrets" list (.Values.global | default dict) | default list) }}
{{- $names = append $names (kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") .) }}
{{- end }}
{{- range uniq $names }}
- name: {{ . }}
{{- end }}
{{- end }}

{{- define "ccm.clusterName" -}}
{{ dig "cattle" "clusterName" "" (.Values.global | default dict) | default .Values.clusterName }}
{{- end }}

{{- /* The file on the nodes; empty where a Secret has it. */}}
{{- define "ccm.file" -}}
{{- $config := .Values.cloudConfig | default dict }}
{{- if not $config.secretName }}
{{- $file := .Values.cloudConfigPath | default $config.hostPath }}
{{- if not $file }}
{{- fail "no cloud-config: set cloudConfig.secretName to a Secret, or cloudConfigPath to a file on the nodes" }}
{{- end }}
{{- if not (isAbs $file) }}
{{- fail (printf "cloudConfigPath %q: give an absolute path of the nodes" $file) }}
{{- end }}
{{- $file = clean $file }}
{{- if eq (dir $file) "/" }}
{{- fail (printf "cloudConfigPath %q: its folder is mounted, and that would be all of the node: put the file into a folder of its own" $file) }}
{{- end }}
{{- $file }}
{{- end }}
{{- end }}

{{- /* Generators and charts disagree about these two: for either, both are looked at. */}}
{{- define "ccm.isUsualFile" -}}
{{- if has . (list "/etc/kubernetes/cloud-config" "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config") }}yes{{ end }}
{{- end }}

{{- /* What the Deployment in the cluster has; without one, this is a first install. */}}
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
{{- else if or $deployment .Release.IsUpgrade }}
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

{{- /* The port of health: that of extraArgs, where it is there. */}}
{{- define "ccm.healthPort" -}}
{{- $port := "10258" }}
{{- range .Values.extraArgs }}
{{- if hasPrefix "--secure-port=" (toString .) }}{{ $port = trimPrefix "--secure-port=" . }}{{ end }}
{{- end }}
{{- $port }}
{{- end }}
