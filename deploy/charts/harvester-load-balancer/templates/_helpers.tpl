{{- /* After `helm upgrade --reuse-values` the values are those of the former chart: what that one did not have is added, in maps too.
Some maps are somebody's as a whole. In values of ours, which have podDisruptionBudget, a key that is not there was taken away with
null, and where that has a meaning it stays away. */}}
{{- define "lb.defaults" -}}
{{- $taken := list }}
{{- if hasKey .Values "podDisruptionBudget" }}{{ $taken = list "priorityClassName" "resources" }}{{ end }}
{{- include "lb.fill" (list .Values (.Files.Get "files/values.yaml" | fromYaml) $taken) }}
{{- end }}

{{- define "lb.fill" -}}
{{- $own := index . 0 }}
{{- $taken := index . 2 }}
{{- range $key, $value := index . 1 }}
{{- if not (hasKey $own $key) }}
{{- if not (has $key $taken) }}{{ $_ := set $own $key $value }}{{ end }}
{{- else if has $key (list "affinity" "nodeSelector" "resources" "securityContext" "global" "kube-vip") }}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $own $key)) }}{{ include "lb.fill" (list (get $own $key) $value $taken) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "lb.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "lb.selectorLabels" -}}
app.kubernetes.io/name: {{ include "lb.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "lb.webhookSelectorLabels" -}}
app.kubernetes.io/name: {{ include "lb.name" . }}-webhook
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "lb.commonLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "lb.labels" -}}
{{ include "lb.commonLabels" . }}
{{ include "lb.selectorLabels" . }}
{{- end }}

{{- define "lb.webhookLabels" -}}
{{ include "lb.commonLabels" . }}
{{ include "lb.webhookSelectorLabels" . }}
{{- end }}

{{- define "lb.registry" -}}
{{- $global := .Values.global | default dict }}
{{- $registry := dig "cattle" "systemDefaultRegistry" "" $global | default (dig "systemDefaultRegistry" "" $global) }}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end }}
{{- end }}

{{- /* An image: call with a list of its values and the root. Packages for one registry have it in the name already. */}}
{{- define "lb.image" -}}
{{- $image := index . 0 }}
{{- $root := index . 1 }}
{{- $registry := include "lb.registry" $root }}
{{- if not (hasPrefix $registry $image.repository) }}{{ $registry }}{{ end }}{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end }}

{{- /* Pull secrets as a list of objects, each name once. */}}
{{- define "lb.pullSecrets" -}}
{{- $names := list }}
{{- range concat (.Values.imagePullSecrets | default list) (dig "cattle" "imagePullSecrets" list (.Values.global | default dict) | default list) }}
{{- $names = append $names (kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") .) }}
{{- end }}
{{- range uniq $names }}
- name: {{ . | quote }}
{{- end }}
{{- end }}

{{- /* Harvester's umbrella chart says imagePullPolicy. */}}
{{- define "lb.pullPolicy" -}}
{{ .imagePullPolicy | default .pullPolicy | default "IfNotPresent" }}
{{- end }}

{{- /* yes where a value that may be auto is on: call with a list of the value and the root. */}}
{{- define "lb.isOn" -}}
{{- $value := index . 0 }}
{{- $root := index . 1 }}
{{- if eq (toString $value) "true" }}yes{{ end }}
{{- if and (eq (toString $value) "auto") ($root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") }}yes{{ end }}
{{- end }}

{{- /* Grafana of rancher-monitoring, which Harvester's add-on is too, reads this one namespace. */}}
{{- define "lb.dashboardNamespace" -}}
{{- $usual := "cattle-dashboards" }}
{{- $isThere := eq (dig "status" "phase" "" (lookup "v1" "Namespace" "" $usual)) "Active" }}
{{- .Values.metrics.dashboard.namespace | default (ternary $usual .Release.Namespace $isThere) }}
{{- end }}

{{- /* yes where pools admit by their selectors whoever names them: what the value says, else what the Deployment in the cluster
has; without one, this is a first install. helm calls it an upgrade where the first attempt failed, or where a release that was
there gets this chart: then pools that are there may be a Go program's. Nobody knows where helm cannot ask the cluster. */}}
{{- define "lb.isStrict" -}}
{{- $value := toString .Values.enforceNamedPoolScope }}
{{- if eq $value "true" }}yes
{{- else if ne $value "false" }}
{{- $deployment := lookup "apps/v1" "Deployment" .Release.Namespace (include "lb.name" .) }}
{{- $isStrict := not $deployment }}
{{- if and $isStrict .Release.IsUpgrade }}
{{- $isStrict = not (empty (lookup "v1" "Namespace" "" "kube-system")) }}
{{- if .Capabilities.APIVersions.Has "loadbalancer.harvesterhci.io/v1beta1/IPPool" }}
{{- if (lookup "loadbalancer.harvesterhci.io/v1beta1" "IPPool" "" "").items }}{{ $isStrict = false }}{{ end }}
{{- end }}
{{- end }}
{{- range dig "spec" "template" "spec" "containers" list $deployment }}
{{- if has "--enforce-named-pool-scope" .args }}{{ $isStrict = true }}{{ end }}
{{- end }}
{{- if $isStrict }}yes{{ end }}
{{- end }}
{{- end }}

{{- /* What both Pods share: call with a dict of root and labels. */}}
{{- define "lb.pod" -}}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with include "lb.pullSecrets" .root | trim }}
imagePullSecrets:
  {{- . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
{{- if .root.Values.affinity }}
  {{- toYaml .root.Values.affinity | nindent 2 }}
{{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        labelSelector:
          matchLabels:
            {{- .labels | nindent 12 }}
        topologyKey: kubernetes.io/hostname
{{- end }}
{{- end }}

{{- define "lb.probes" -}}
livenessProbe:
  httpGet: {port: metrics, path: /livez}
  initialDelaySeconds: 10
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {port: metrics, path: /readyz}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- define "lb.containerSecurity" -}}
{{- $least := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) }}
{{- toYaml (mergeOverwrite $least (. | default dict)) }}
{{- end }}
