{{/* The models of a release: what each serves with, how many replicas, and what follows for all. */}}

{{/*
The models as JSON, `of` a list: for each the name and path of its application in Serve, its
settings, how many replicas there always are (`fewest`) and may be (`most`).
The first is `model`.
*/}}
{{- define "headlight.models" -}}
{{- $root := . -}}
{{- $scaled := .Values.autoscaling.enabled -}}
{{- $fewest := $scaled | ternary .Values.autoscaling.minReplicas .Values.replicas -}}
{{- $all := list (dict "app" "headlight" "path" "" "name" .Values.model.name "settings" .Values.settings "fewest" $fewest "most" .Values.maxReplicas) -}}
{{- range .Values.models }}
{{- $own := $scaled | ternary .minReplicas .replicas | default $fewest -}}
{{- $settings := omit $root.Values.settings "served_model_name" -}}
{{- range $setting, $value := .settings }}{{ $_ := set $settings $setting $value }}{{ end -}}
{{- $all = append $all (dict "app" .path "path" (printf "/%s" .path) "name" .name "settings" $settings "fewest" $own "most" (.maxReplicas | default $root.Values.maxReplicas)) }}
{{- end }}
{{- dict "of" $all | toJson }}
{{- end }}

{{/* Fewest replicas that there always are, of all models. */}}
{{- define "headlight.fewest" -}}
{{- $sum := 0 -}}
{{- range (include "headlight.models" . | fromJson).of }}{{ $sum = add $sum (int .fewest) }}{{ end -}}
{{ $sum }}
{{- end }}

{{/* The maximum number of replicas of all models. */}}
{{- define "headlight.replicas" -}}
{{- $sum := 0 -}}
{{- range (include "headlight.models" . | fromJson).of }}{{ $sum = add $sum (int .most) }}{{ end -}}
{{ $sum }}
{{- end }}

{{/* The maximum number of replicas, with those that an update starts next to the old ones: one for every five. */}}
{{- define "headlight.most" -}}
{{- $sum := 0 -}}
{{- range (include "headlight.models" . | fromJson).of }}{{ $sum = add $sum (int .most) (divf .most 5 | ceil | int) }}{{ end -}}
{{ $sum }}
{{- end }}

{{/* Seconds within each other: a request, a replica that leaves, its node, its pod, its cluster. */}}
{{- define "headlight.seconds" -}}
{{- $defaults := (.Files.Get "files/ray.yaml" | fromYaml).settings -}}
{{- $deadline := .Values.settings.deadline_seconds | default $defaults.deadline_seconds | float64 -}}
{{- $drain := get (hasKey .Values.settings "drain_seconds" | ternary .Values.settings $defaults) "drain_seconds" | float64 -}}
{{- $leave := addf $drain $deadline 5 | ceil | int -}}
{{- dict "deadline" $deadline "drain" $drain "node" (add $leave 30) "pod" (add $leave 60) "cluster" (add $leave 120) | toJson }}
{{- end }}

{{/*
Settings of a model (`args`) as YAML: the chart's own, then those of the values. Takes the root and
the model. Helm reads each number as a float, which it would write as 1.048576e+06, and `merge`
takes 0 and false for nothing.
*/}}
{{- define "headlight.settings" -}}
{{- $root := index . 0 -}}
{{- $model := index . 1 -}}
{{- $name := eq $root.Values.model.source "pvc" | ternary (printf "/models/%s" $model.name) $model.name -}}
{{- $threads := eq $root.Values.device "cuda" | ternary 1 $root.Values.workers.cpu.threads -}}
{{- $drain := include "headlight.seconds" $root | fromJson | dig "drain" 0 -}}
{{- $own := dict "model" $name "device" $root.Values.device "threads" $threads "drain_seconds" $drain -}}
{{- if $root.Values.autoscaling.enabled }}
{{- $_ := set $own "min_replicas" $model.fewest }}
{{- $_ := set $own "max_replicas" $model.most }}
{{- end }}
{{- range $setting, $value := $model.settings }}{{ $_ := set $own $setting $value }}{{ end }}
{{- range $name, $value := $own }}
{{ $name }}: {{ include "headlight.plain" $value }}
{{- end }}
{{- end }}

{{- define "headlight.plain" -}}
{{ if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

{{/* What Ray's pods start with: deploy/serve/ray.env, for these values. KubeRay sets the token and its mode. */}}
{{- define "headlight.ray" -}}
{{- $ray := .Files.Get "files/ray.yaml" | fromYaml -}}
{{- $variables := $ray.variables -}}
{{- $seconds := include "headlight.seconds" . | fromJson -}}
{{- $deadline := ceil $seconds.deadline | int -}}
{{- $connections := int $ray.spare_requests -}}
{{- range (include "headlight.models" . | fromJson).of }}
{{- $waiting := .settings.max_waiting_requests | default $ray.settings.max_waiting_requests | int -}}
{{- $connections = add $connections (mul (add $waiting $ray.spare_requests) (int .most)) -}}
{{- end }}
{{- $_ := set $variables "RAY_SERVE_HAPROXY_MAXCONN" (toString $connections) }}
{{- $_ := set $variables "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S" (add $deadline 15) }}
{{- $idle := .Values.settings.keep_alive_seconds | default $ray.settings.keep_alive_seconds | int -}}
{{- $_ := set $variables "HAPROXY_KEEP_ALIVE_S" (toString $idle) }}
{{- $_ := set $variables "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S" (max $ray.variables.RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S (add $deadline 20) $idle) }}
{{- $_ := set $variables "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S" $seconds.drain }}
{{- $_ := set $variables "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S" $seconds.node }}
{{- toJson $variables }}
{{- end }}

{{/* What a pod of the Deployment starts with: the settings of `headlight serve` that all models share. It drains before it is told to stop (preStop). */}}
{{- define "headlight.own" -}}
{{- $variables := dict -}}
{{- $model := first (include "headlight.models" . | fromJson).of -}}
{{- range $name, $value := include "headlight.settings" (list . $model) | fromYaml }}
{{- if eq $name "drain_seconds" }}{{ $value = 0.0 }}{{ end -}}
{{- $text := kindIs "slice" $value | ternary (join "," $value) (include "headlight.plain" $value) -}}
{{- $_ := set $variables (printf "HEADLIGHT_%s" (upper $name)) (kindIs "string" $value | ternary $value $text) }}
{{- end }}
{{- toJson $variables }}
{{- end }}

{{/*
What the Deployment's command reads with `--config` where there are several models, as YAML: each with
what it says of itself. All else is in the variables. A model is mounted below its name, so the path
is the name unless `settings` has one that ends so.
*/}}
{{- define "headlight.list" -}}
{{- $root := . -}}
{{- $own := prepend .Values.models dict -}}
models:
{{- range $index, $model := (include "headlight.models" . | fromJson).of }}
{{- $said := dict "model" (include "headlight.settings" (list $root $model) | fromYaml).model -}}
{{- if $model.path }}{{ $_ := set $said "served_model_name" $model.app }}{{ end -}}
{{- range $name, $value := (index $own $index).settings }}{{ $_ := set $said $name $value }}{{ end }}
  -
  {{- range $name, $value := $said }}
    {{ $name }}: {{ include "headlight.plain" $value }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Something where there is such a file. */}}
{{- define "headlight.hasList" -}}
{{ if and (eq .Values.kind "Deployment") .Values.models }}true{{ end }}
{{- end }}

{{/* The name of its ConfigMap. */}}
{{- define "headlight.listName" -}}
{{ .Release.Name }}-models-{{ include "headlight.list" . | sha256sum | trunc 8 }}
{{- end }}

{{/* Bytes of the largest body that any model reads. */}}
{{- define "headlight.body" -}}
{{- $most := 0 -}}
{{- $defaults := (.Files.Get "files/ray.yaml" | fromYaml).settings -}}
{{- range (include "headlight.models" . | fromJson).of }}
{{- $most = max $most (.settings.max_body_bytes | default $defaults.max_body_bytes) -}}
{{- end }}
{{- mul $most $defaults.binary }}
{{- end }}

{{/* What clients from outside may ask of a model, as JSON: each path of the API, and not /metrics. Takes the root and the model. */}}
{{- define "headlight.paths" -}}
{{- $path := (index . 1).path -}}
{{- $all := list (dict "path" (print $path "/") "type" "Exact") -}}
{{- range ((index . 0).Files.Get "files/ray.yaml" | fromYaml).paths }}
{{- $all = append $all (dict "path" (print $path "/" .) "type" "Prefix") }}
{{- end }}
{{- toJson $all }}
{{- end }}
