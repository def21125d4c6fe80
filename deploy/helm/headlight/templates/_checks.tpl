{{/* What values.schema.json cannot say: values that do not go together. One line for the first of them. */}}

{{- define "headlight.check" -}}
{{- $values := .Values -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,45}[a-z0-9])?$" .Release.Name) }}
{{- fail (printf "release name %s: KubeRay wants a letter, then at most 46 of a-z, 0-9 and -" .Release.Name) }}
{{- end }}
{{- range list "cpu" "cuda" }}
{{- with index $values.image . }}
{{- if and .tag .digest }}
{{- fail (printf "image: set a tag or a digest, not both: %s and %s" .tag .digest) }}
{{- end }}
{{- end }}
{{- end }}
{{- if eq .Values.kind "Deployment" }}
{{- include "headlight.check.deployment" . }}
{{- include "headlight.check.list" . }}
{{- else }}
{{- include "headlight.check.replicas" . }}
{{- include "headlight.check.upgrade" . }}
{{- include "headlight.check.memory" (list "head" .Values.head.resources 1) }}
{{- end }}
{{- include "headlight.check.paths" . }}
{{- include "headlight.check.model" . }}
{{- include "headlight.check.pod" . }}
{{- include "headlight.check.reach" . }}
{{- end }}

{{/* What is Ray's or KubeRay's alone. */}}
{{- define "headlight.check.deployment" -}}
{{- with .Values }}
{{- $asked := dict "autoscaling.enabled" .autoscaling.enabled "gcsFaultTolerance.redisAddress" .gcsFaultTolerance.redisAddress "podDisruptionBudget.head" .podDisruptionBudget.head "upgrade.type" (ne .upgrade.type "NewCluster") }}
{{- range $name, $value := $asked }}
{{- if $value }}
{{- fail (printf "%s: only with kind RayService; a Deployment has neither a head nor a cluster" $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* What a model of a Deployment's pod cannot have for itself. */}}
{{- define "headlight.check.list" -}}
{{- $own := (.Files.Get "files/ray.yaml" | fromYaml).own -}}
{{- range .Values.models }}
{{- $model := . -}}
{{- range list "replicas" "minReplicas" "maxReplicas" }}
{{- if hasKey $model . }}
{{- fail (printf "models %s: %s: only with kind RayService; a pod has one replica of each model" $model.path .) }}
{{- end }}
{{- end }}
{{- range $name, $value := .settings }}
{{- if not (has $name $own) }}
{{- fail (printf "models %s: settings.%s: with kind Deployment it belongs to all models, in settings" $model.path $name) }}
{{- end }}
{{- end }}
{{- $name := dig "served_model_name" .path (.settings | default dict) | lower -}}
{{- if ne (splitList "/" $name | last) .path }}
{{- fail (printf "models %s: settings.served_model_name %s: with kind Deployment it must end in the path" .path $name) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "headlight.check.paths" -}}
{{- $taken := concat (.Files.Get "files/ray.yaml" | fromYaml).paths (list "metrics") -}}
{{- range .Values.models }}
{{- if has .path $taken }}
{{- fail (printf "models %s: the first model answers at /%s; choose another path" .path .path) }}
{{- end }}
{{- if eq .path "headlight" }}
{{- fail "models headlight: the first model's application has this name; choose another path" }}
{{- end }}
{{- $taken = append $taken .path }}
{{- end }}
{{- end }}

{{- define "headlight.check.replicas" -}}
{{- $root := . -}}
{{- if not (or .Values.replicas .Values.autoscaling.enabled) }}
{{- fail "replicas: null only with kind Deployment; Ray's own autoscaler is autoscaling.enabled" }}
{{- end }}
{{- range $index, $model := (include "headlight.models" . | fromJson).of }}
{{- $further := gt $index 0 -}}
{{- $where := $further | ternary (printf "models %s: " $model.app) "" -}}
{{- if gt (int $model.fewest) (int $model.most) }}
{{- $name := $root.Values.autoscaling.enabled | ternary ($further | ternary "minReplicas" "autoscaling.minReplicas") "replicas" }}
{{- fail (printf "%s%s %v must not be more than maxReplicas, which is %v" $where $name $model.fewest $model.most) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "headlight.check.upgrade" -}}
{{- with .Values.upgrade }}
{{- if eq .type "NewCluster" }}
{{- if .gatewayClassName }}
{{- fail (printf "upgrade.gatewayClassName %s: set upgrade.type to NewClusterWithIncrementalUpgrade" .gatewayClassName) }}
{{- end }}
{{- else }}
{{- $_ := required "upgrade.gatewayClassName: KubeRay makes a gateway of this class and moves the traffic there" .gatewayClassName }}
{{- if gt (int .stepSizePercent) (int .maxSurgePercent) }}
{{- fail (printf "upgrade.stepSizePercent %v must not be more than maxSurgePercent, which is %v" .stepSizePercent .maxSurgePercent) }}
{{- end }}
{{- if or $.Values.httpRoute.enabled $.Values.ingress.enabled }}
{{- fail "upgrade.type: clients come by the gateway that KubeRay makes; disable httpRoute and ingress" }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "headlight.check.model" -}}
{{- $source := .Values.model.source }}
{{- range (include "headlight.models" . | fromJson).of }}
{{- if and (eq $source "pvc") (or (hasPrefix "/" .name) (has ".." (splitList "/" .name))) }}
{{- fail (printf "model.name %s: with model.source pvc, a folder of the volume, such as minilm" .name) }}
{{- end }}
{{- if and (eq $source "hub") (not (regexMatch "^[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+(@[A-Za-z0-9_][A-Za-z0-9_./-]*)?$" .name)) }}
{{- fail (printf "model.name %s: with model.source hub, org/name or org/name@revision" .name) }}
{{- end }}
{{- end }}
{{- if eq .Values.model.source "pvc" }}
{{- $_ := required "model.pvc.claimName: with model.source pvc, name an existing claim" .Values.model.pvc.claimName }}
{{- else if .Values.model.pvc.claimName }}
{{- fail (printf "model.pvc.claimName %s: set model.source to pvc" .Values.model.pvc.claimName) }}
{{- end }}
{{- if and .Values.model.hub.secretName (ne .Values.model.source "hub") }}
{{- fail (printf "model.hub.secretName %s: set model.source to hub" .Values.model.hub.secretName) }}
{{- end }}
{{- end }}

{{- define "headlight.check.pod" -}}
{{- $group := include "headlight.group" . -}}
{{- $resources := (index .Values.workers $group).resources -}}
{{- $cores := toString (get $resources.limits "cpu" | default $resources.requests.cpu) -}}
{{- $has := hasSuffix "m" $cores | ternary (divf (trimSuffix "m" $cores) 1000) (float64 $cores) -}}
{{- $count := include "headlight.perPod" . | int -}}
{{- $needed := include "headlight.cores" . | int | mul $count -}}
{{- if lt $has (float64 $needed) }}
{{- $what := gt $count 1 | ternary (printf "%d models need" $count) "a replica needs" }}
{{- fail (printf "workers.%s.resources: cpu %s, and %s %d" $group $cores $what $needed) }}
{{- end }}
{{- if and (eq $group "gpu") (not (regexMatch "^[1-9][0-9]*$" (include "headlight.gpus" .))) }}
{{- fail "workers.gpu.resources.limits: one resource such as nvidia.com/gpu, nvidia.com/mig-1g.10gb or amd.com/gpu; set the default to null" }}
{{- end }}
{{- include "headlight.check.memory" (list (printf "workers.%s" $group) $resources $count) }}
{{- end }}

{{/*
A pod's processes hold 1.6 GiB with the bundled model, and half a GiB more with each further one of its
size (docs/operations.md). Takes the pod's name, its resources and how many models it has.
*/}}
{{- define "headlight.check.memory" -}}
{{- $resources := index . 1 -}}
{{- $memory := get $resources.limits "memory" | default $resources.requests.memory | toString -}}
{{- $units := dict "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $unit := regexFind "[A-Za-z]+$" $memory -}}
{{- $needed := sub (index . 2) 1 | mul 512 | add 2048 -}}
{{- if lt (mulf (trimSuffix $unit $memory) (get $units $unit | default 1)) (mulf $needed 1048576) }}
{{- $least := eq (mod $needed 1024) 0 | ternary (printf "%dGi" (div $needed 1024)) (printf "%dMi" $needed) }}
{{- fail (printf "%s.resources: memory %s; with less than %s the pod is killed" (index . 0) $memory $least) }}
{{- end }}
{{- end }}

{{/*
The models have to know the names by which they are asked. Prometheus asks the first by the Service,
or more than ten replicas, like each pod of a Deployment, by their addresses; a key of its own lets it
in under any name, unless everyone may read the metrics.
*/}}
{{- define "headlight.check.scrape" -}}
{{- $root := . -}}
{{- $key := and .Values.apiKeys.secretName .Values.monitoring.secretName -}}
{{- $host := printf "%s.%s.svc" (include "headlight.service" .) .Release.Namespace -}}
{{- $each := or (eq .Values.kind "Deployment") (gt (include "headlight.replicas" . | int) 10) -}}
{{- range $index, $model := (include "headlight.models" . | fromJson).of }}
{{- if or $each (eq $index 0) }}
{{- $public := $model.settings.public_metrics -}}
{{- $hosts := $model.settings.allowed_hosts -}}
{{- if and $root.Values.apiKeys.secretName (not $key) (not $public) }}
{{- fail "monitoring.secretName: with API keys, Prometheus needs a key marked `metrics`; or set settings.public_metrics to true, or monitoring.scrape to false" }}
{{- end }}
{{- if and $hosts (or $public (not $key)) }}
{{- $mend := "give it a key (monitoring.secretName, no public_metrics) or set monitoring.scrape to false" }}
{{- if $each }}
{{- fail (printf "settings.allowed_hosts: Prometheus asks each pod by its address; %s" $mend) }}
{{- else if not (has $host $hosts) }}
{{- fail (printf "settings.allowed_hosts: Prometheus asks %s; add it, or %s" $host $mend) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Clients from outside ask by the names of the Ingress and the route. */}}
{{- define "headlight.check.hosts" -}}
{{- $names := list -}}
{{- with .Values.ingress }}{{ if and .enabled .host }}{{ $names = append $names (list "ingress.host" .host) }}{{ end }}{{ end -}}
{{- if .Values.httpRoute.enabled }}
{{- range .Values.httpRoute.hostnames }}{{ $names = append $names (list "httpRoute.hostnames" .) }}{{ end -}}
{{- end }}
{{- range (include "headlight.models" . | fromJson).of }}
{{- $hosts := .settings.allowed_hosts -}}
{{- $app := .app -}}
{{- range $names }}
{{- if and $hosts (not (has (index . 1) $hosts)) }}
{{- fail (printf "%s %s: %s does not answer under this name; add it to settings.allowed_hosts" (index . 0) (index . 1) $app) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "headlight.check.reach" -}}
{{- include "headlight.check.hosts" . }}
{{- if .Values.monitoring.scrape }}
{{- include "headlight.check.scrape" . }}
{{- if and (eq .Values.kind "RayService") (eq .Values.monitoring.kind "ServiceMonitor") (gt (include "headlight.replicas" . | int) 10) }}
{{- fail "monitoring.kind ServiceMonitor: of more than ten replicas Prometheus asks each by itself; set ScrapeConfig" }}
{{- end }}
{{- end }}
{{- if and (hasPrefix "http" (.Values.settings.tracing | default "")) .Values.networkPolicy.enabled (not .Values.networkPolicy.extraEgress) }}
{{- fail (printf "networkPolicy.extraEgress: allow the way to settings.tracing, which is %s" .Values.settings.tracing) }}
{{- end }}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}
{{- fail "httpRoute.parentRefs: name the gateway it belongs to" }}
{{- end }}
{{- end }}
