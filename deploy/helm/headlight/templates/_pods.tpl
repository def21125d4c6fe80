{{/* What pods are made of, head's and workers' and the Deployment's alike. */}}

{{/* The labels of our pods. Takes the root and their role. */}}
{{- define "headlight.podMetadata" -}}
{{- $root := index . 0 -}}
labels: {{- include "headlight.pods" $root | nindent 2 }}
  role: {{ index . 1 }}
  {{- range $name, $value := $root.Values.pods.labels }}
  {{- if or (has $name (list "app" "role")) (hasPrefix "ray.io/" $name) }}
  {{- fail (printf "pods.labels %s: the chart or KubeRay sets it" $name) }}
  {{- end }}
  {{ $name }}: {{ quote $value }}
  {{- end }}
{{- $head := eq (index . 1) "head" | ternary (dict "cluster-autoscaler.kubernetes.io/safe-to-evict" "false") dict -}}
{{- with merge dict $root.Values.pods.annotations $head }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What any of our pods has. Takes the root, and head, cpu or gpu. */}}
{{- define "headlight.pod" -}}
{{- $root := index . 0 -}}
{{- $seconds := include "headlight.seconds" $root | fromJson -}}
# a request {{ $seconds.deadline }} < its node's drain {{ $seconds.node }} < this
terminationGracePeriodSeconds: {{ $seconds.pod }}
enableServiceLinks: false # a Service headlight* would look like our settings
{{- with $root.Values.serviceAccount }}
{{- if or .create .name }}
serviceAccountName: {{ include "headlight.serviceAccount" $root }}
{{- end }}
{{- end }}
{{- with (index . 1).priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
securityContext: {{- toYaml $root.Values.pods.securityContext | nindent 2 }}
{{- with $root.Values.pods.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with (index . 1).nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index . 1).tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index . 1).affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.pods.initContainers }}
initContainers: {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  - {name: tmp, emptyDir: {sizeLimit: 10Gi}}
  - {name: home, emptyDir: {sizeLimit: {{ eq $root.Values.model.source "hub" | ternary $root.Values.model.hub.cacheSize "1Gi" }}}}
  - {name: shm, emptyDir: {medium: Memory, sizeLimit: 512Mi}} # twice Ray's store
{{- if eq $root.Values.model.source "pvc" }}
  - {name: models, persistentVolumeClaim: {claimName: {{ $root.Values.model.pvc.claimName }}, readOnly: true}}
{{- end }}
{{- if include "headlight.hasList" $root }}
  - {name: list, configMap: {name: {{ include "headlight.listName" $root }}}}
{{- end }}
{{- with $root.Values.apiKeys }}
{{- if .secretName }}
  - {name: keys, secret: {secretName: {{ .secretName }}, items: [{key: {{ .secretKey }}, path: keys}], defaultMode: 0440}}
{{- end }}
{{- end }}
{{- range $root.Values.pods.extraVolumes }}
{{- if has .name (list "tmp" "home" "shm" "models" "list" "keys") }}
{{- fail (printf "pods.extraVolumes %s: the chart has a volume of this name" .name) }}
{{- end }}
{{- toYaml (list .) | nindent 2 }}
{{- end }}
{{- end }}

{{- define "headlight.spread" -}}
{{- with .Values.workers.topologySpread -}}
topologySpreadConstraints:
{{- range . }}
  - {maxSkew: {{ .maxSkew }}, topologyKey: {{ .topologyKey }}, whenUnsatisfiable: {{ .whenUnsatisfiable }}, labelSelector: {matchLabels: { {{- include "headlight.pods" $ -}} , role: worker}}}
{{- end }}
{{- end }}
{{- end }}

{{/* The variables of every container of ours. Takes the root. */}}
{{- define "headlight.environment" -}}
{{- $variables := include (eq .Values.kind "Deployment" | ternary "headlight.own" "headlight.ray") . | fromJson -}}
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
{{- range .Values.pods.extraEnv }}
{{- if or (hasKey $variables .name) (regexMatch "^(HEADLIGHT_|RAY_AUTH_|HF_TOKEN$)" .name) }}
{{- fail (printf "pods.extraEnv %s: the chart sets it; settings of the service belong to `settings`" .name) }}
{{- end }}
{{- toYaml (list .) | nindent 0 }}
{{- end }}
{{- end }}

{{/* What any of our containers has. Takes the root, its resources and cpu or cuda. */}}
{{- define "headlight.container" -}}
{{- $root := index . 0 -}}
image: {{ include "headlight.image" (list $root (index . 2)) }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
env: {{- include "headlight.environment" $root | trim | nindent 2 }}
{{- with $root.Values.pods.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
resources: {{- toYaml (index . 1) | nindent 2 }}
securityContext: {{- include "headlight.securityContext" . | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: home, mountPath: /home/headlight}
  - {name: shm, mountPath: /dev/shm}
{{- if eq $root.Values.model.source "pvc" }}
  - {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- if include "headlight.hasList" $root }}
  - {name: list, mountPath: /etc/headlight-models, readOnly: true}
{{- end }}
{{- if $root.Values.apiKeys.secretName }}
  - {name: keys, mountPath: /etc/headlight, readOnly: true}
{{- end }}
{{- with $root.Values.pods.extraVolumeMounts }}
{{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "headlight.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The containers next to ours. Takes the root. */}}
{{- define "headlight.sidecars" -}}
{{- range .Values.pods.sidecars }}
{{- if has .name (list "headlight" "ray-head" "ray-worker" "autoscaler") }}
{{- fail (printf "pods.sidecars %s: the chart or KubeRay has a container of this name" .name) }}
{{- end }}
{{- toYaml (list .) | nindent 0 }}
{{- end }}
{{- end }}

{{- define "headlight.serviceAccount" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{/* How many GPUs a worker has, by the one resource of NVIDIA's or AMD's that it asks for: whole ones, shared ones or parts (MIG). */}}
{{- define "headlight.gpus" -}}
{{- $found := list -}}
{{- range $name, $count := .Values.workers.gpu.resources.limits }}{{ if regexMatch "^(nvidia|amd)[.]com/" $name }}{{ $found = append $found $count }}{{ end }}{{ end -}}
{{ if eq (len $found) 1 }}{{ first $found }}{{ end }}
{{- end }}

{{/* Ray's shared memory: by default 30 % of the pod's, more than its /dev/shm has. No request goes through it. */}}
{{- define "headlight.store" -}}
object-store-memory: "268435456"
no-redirect-output: "true" # the replicas' lines, and Ray's: else files in the pod have them
{{- end }}
