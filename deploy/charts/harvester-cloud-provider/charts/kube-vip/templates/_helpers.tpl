{{- define "kube-vip.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "kube-vip.namespace" -}}
{{ default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "kube-vip.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kube-vip.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "kube-vip.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "kube-vip.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "kube-vip.registry" -}}
{{- $global := .Values.global | default dict }}
{{- $registry := dig "cattle" "systemDefaultRegistry" "" $global | default (dig "systemDefaultRegistry" "" $global) }}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end }}
{{- end }}

{{- /* Before the Go chart 0.2.9 values had to name the registry themselves, and an upgrade keeps them. */}}
{{- define "kube-vip.image" -}}
{{- $registry := include "kube-vip.registry" . }}
{{- if not (hasPrefix $registry .Values.image.repository) }}{{ $registry }}{{ end }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "kube-vip.pullSecrets" -}}
{{- $names := list }}
{{- range concat (.Values.imagePullSecrets | default list) (dig "cattle" "imagePullSecrets" list (.Values.global | default dict) | default list) }}
{{- $names = append $names (kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") .) }}
{{- end }}
{{- range uniq $names }}
- name: {{ . | quote }}
{{- end }}
{{- end }}

{{- /* Where kube-vip serves metrics for a PodMonitor; empty where it does not, or nobody asks. */}}
{{- define "kube-vip.monitoredPort" -}}
{{- if (.Values.podMonitor | default dict).enabled }}
{{- with splitList ":" (toString (.Values.env | default dict).prometheus_server) | last | int }}{{ . }}{{ end }}
{{- end }}
{{- end }}
