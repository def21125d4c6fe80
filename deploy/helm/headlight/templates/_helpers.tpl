{{/* What several templates say, once. Numbers of the service itself come from files/ray.yaml. */}}

{{- define "headlight.metadata" -}}
namespace: {{ .Release.Namespace }}
labels:
  app.kubernetes.io/name: headlight
  app.kubernetes.io/instance: {{ .Release.Name }}
  app.kubernetes.io/version: {{ .Chart.AppVersion }}
  helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The label of all pods. KubeRay takes app.kubernetes.io/* for itself. */}}
{{- define "headlight.pods" -}}
app: {{ .Release.Name }}-ray
{{- end }}

{{- define "headlight.service" -}}
{{ .Release.Name }}-serve-svc
{{- end }}

{{/* cpu or gpu: the group of workers that there is. */}}
{{- define "headlight.group" -}}
{{ eq .Values.device "cuda" | ternary "gpu" "cpu" }}
{{- end }}

{{/* Fewest replicas that there always are. */}}
{{- define "headlight.fewest" -}}
{{ .Values.autoscaling.enabled | ternary .Values.autoscaling.minReplicas .Values.replicas | int }}
{{- end }}

{{/* An image in full. Takes the root and cpu or cuda. */}}
{{- define "headlight.image" -}}
{{- $root := index . 0 -}}
{{- $image := $root.Values.image -}}
{{- $build := index $image (index . 1) -}}
{{- $tag := $build.tag | default (printf "%s-%s" $root.Chart.AppVersion (index . 1)) -}}
{{ $image.registry }}/{{ $image.repository }}{{ if $build.digest }}@{{ $build.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/*
Settings of the service (`args`) as YAML: the chart's own, then those of values.settings.
Helm reads each number as a float, which it would write as 1.048576e+06.
*/}}
{{- define "headlight.settings" -}}
{{- $model := .Values.model.name -}}
{{- if eq .Values.model.source "pvc" }}{{ $model = printf "/models/%s" .Values.model.name }}{{ end -}}
{{- $threads := eq .Values.device "cuda" | ternary 1 .Values.workers.cpu.threads -}}
{{- $drain := include "headlight.seconds" . | fromJson | dig "drain" 0 -}}
{{- $own := dict "model" $model "device" .Values.device "threads" $threads "drain_seconds" $drain -}}
{{- if .Values.autoscaling.enabled }}
{{- $_ := set $own "min_replicas" .Values.autoscaling.minReplicas }}
{{- $_ := set $own "max_replicas" .Values.maxReplicas }}
{{- end }}
{{- range $name, $value := merge (deepCopy .Values.settings) $own }}
{{ $name }}: {{ if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ int64 $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end }}

{{/* Seconds within each other: a request, a replica that leaves, its node, its pod, its cluster. */}}
{{- define "headlight.seconds" -}}
{{- $defaults := (.Files.Get "files/ray.yaml" | fromYaml).settings -}}
{{- $deadline := .Values.settings.deadline_seconds | default $defaults.deadline_seconds | float64 -}}
{{- $drain := (merge (deepCopy .Values.settings) $defaults).drain_seconds | float64 -}}
{{- $leave := addf $drain $deadline 5 | ceil | int -}}
{{- dict "deadline" $deadline "drain" $drain "node" (add $leave 30) "pod" (add $leave 60) "cluster" (add $leave 120) | toJson }}
{{- end }}

{{/*
What head and workers start with: deploy/serve/ray.env, for these values. KubeRay itself sets the
token and its mode.
*/}}
{{- define "headlight.environment" -}}
{{- $ray := .Files.Get "files/ray.yaml" | fromYaml -}}
{{- $variables := $ray.variables -}}
{{- $seconds := include "headlight.seconds" . | fromJson -}}
{{- $deadline := ceil $seconds.deadline | int -}}
{{- $waiting := .Values.settings.max_waiting_requests | default $ray.settings.max_waiting_requests | int -}}
{{- $ongoing := add $waiting $ray.spare_requests | int -}}
{{- $_ := set $variables "RAY_SERVE_HAPROXY_MAXCONN" (add (mul $ongoing (int .Values.maxReplicas)) $ray.spare_requests) }}
{{- $_ := set $variables "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S" (add $deadline 5) }}
{{- $_ := set $variables "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S" (max $ray.variables.RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S (add $deadline 10)) }}
{{- $_ := set $variables "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S" $seconds.drain }}
{{- $_ := set $variables "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S" $seconds.node }}
{{- with .Values.settings.max_source_connections }}
{{- $_ := set $variables "HEADLIGHT_MAX_SOURCE_CONNECTIONS" (int64 .) }}
{{- end }}
{{- $_ := set $variables "HF_HUB_OFFLINE" (eq .Values.model.source "hub" | ternary "0" "1") }}
{{- if .Values.apiKeys.secretName }}
{{- $_ := set $variables "HEADLIGHT_API_KEYS_FILE" "/etc/headlight/keys" }}
{{- end }}
{{- range $name, $value := $variables }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- if and (eq .Values.model.source "hub") .Values.model.hub.secretName }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.model.hub.secretName }}, key: {{ .Values.model.hub.secretKey }}}}
{{- end }}
{{- end }}

{{/* What any of Ray's pods has. Takes the root, and head, cpu or gpu. */}}
{{- define "headlight.pod" -}}
{{- $root := index . 0 -}}
{{- $seconds := include "headlight.seconds" $root | fromJson -}}
# a request {{ $seconds.deadline }} < its node's drain {{ $seconds.node }} < this
terminationGracePeriodSeconds: {{ $seconds.pod }}
enableServiceLinks: false # a Service headlight* would look like our settings
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  seccompProfile: {type: RuntimeDefault}
{{- with (index . 1).nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index . 1).tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  - {name: tmp, emptyDir: {sizeLimit: 10Gi}}
  - {name: home, emptyDir: {sizeLimit: {{ eq $root.Values.model.source "hub" | ternary $root.Values.model.hub.cacheSize "1Gi" }}}}
  - {name: shm, emptyDir: {medium: Memory, sizeLimit: 512Mi}} # twice Ray's store
{{- if eq $root.Values.model.source "pvc" }}
  - {name: models, persistentVolumeClaim: {claimName: {{ $root.Values.model.pvc.claimName }}, readOnly: true}}
{{- end }}
{{- with $root.Values.apiKeys }}
{{- if .secretName }}
  - {name: keys, secret: {secretName: {{ .secretName }}, items: [{key: {{ .secretKey }}, path: keys}], defaultMode: 0440}}
{{- end }}
{{- end }}
{{- end }}

{{/* What any of Ray's containers has. Takes the root, its resources and cpu or cuda. */}}
{{- define "headlight.container" -}}
{{- $root := index . 0 -}}
image: {{ include "headlight.image" (list $root (index . 2)) }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
env: {{- include "headlight.environment" $root | trim | nindent 2 }}
resources:
  requests: {{- toYaml (index . 1) | nindent 4 }}
  limits: {{- toYaml (index . 1) | nindent 4 }}
securityContext: {{- include "headlight.securityContext" . | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: home, mountPath: /home/headlight}
  - {name: shm, mountPath: /dev/shm}
{{- if eq $root.Values.model.source "pvc" }}
  - {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- if $root.Values.apiKeys.secretName }}
  - {name: keys, mountPath: /etc/headlight, readOnly: true}
{{- end }}
{{- end }}

{{- define "headlight.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Ray's shared memory: by default 30 % of the pod's, more than its /dev/shm has. No request goes through it. */}}
{{- define "headlight.store" -}}
object-store-memory: "268435456"
no-redirect-output: "true" # the replicas' lines, and Ray's: else files in the pod have them
{{- end }}
