{{/* What values.schema.json cannot say: values that do not go together. One line for the first of them. */}}

{{- define "headlight.check" -}}
{{- $values := .Values -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,45}[a-z0-9])?$" .Release.Name) }}
{{- fail (printf "release name %s: KubeRay wants a letter, then at most 46 of a-z, 0-9 and -" .Release.Name) }}
{{- end }}
{{- if gt (include "headlight.fewest" . | int) (int .Values.maxReplicas) }}
{{- fail (printf "%s %s must not be more than maxReplicas, which is %v" (.Values.autoscaling.enabled | ternary "autoscaling.minReplicas" "replicas") (include "headlight.fewest" .) .Values.maxReplicas) }}
{{- end }}
{{- range list "cpu" "cuda" }}
{{- with index $values.image . }}
{{- if and .tag .digest }}
{{- fail (printf "image: set a tag or a digest, not both: %s and %s" .tag .digest) }}
{{- end }}
{{- end }}
{{- end }}
{{- include "headlight.check.model" . }}
{{- include "headlight.check.cores" . }}
{{- include "headlight.check.reach" . }}
{{- end }}

{{- define "headlight.check.model" -}}
{{- $name := .Values.model.name }}
{{- if eq .Values.model.source "pvc" }}
{{- $_ := required "model.pvc.claimName: with model.source pvc, name an existing claim" .Values.model.pvc.claimName }}
{{- if or (hasPrefix "/" $name) (has ".." (splitList "/" $name)) }}
{{- fail (printf "model.name %s: with model.source pvc, a folder of the volume, such as minilm" $name) }}
{{- end }}
{{- else if .Values.model.pvc.claimName }}
{{- fail (printf "model.pvc.claimName %s: set model.source to pvc" .Values.model.pvc.claimName) }}
{{- end }}
{{- if eq .Values.model.source "hub" }}
{{- if not (regexMatch "^[A-Za-z0-9_-][A-Za-z0-9_.-]*/[A-Za-z0-9_-][A-Za-z0-9_.-]*(@[A-Za-z0-9_][A-Za-z0-9_./-]*)?$" $name) }}
{{- fail (printf "model.name %s: with model.source hub, org/name or org/name@revision" $name) }}
{{- end }}
{{- else if .Values.model.hub.secretName }}
{{- fail (printf "model.hub.secretName %s: set model.source to hub" .Values.model.hub.secretName) }}
{{- end }}
{{- end }}

{{- define "headlight.check.cores" -}}
{{- $cores := index (include "headlight.group" . | index .Values.workers) "resources" "cpu" | toString -}}
{{- $threads := eq .Values.device "cuda" | ternary 2 .Values.workers.cpu.threads -}}
{{- $has := hasSuffix "m" $cores | ternary (divf (trimSuffix "m" $cores) 1000) (float64 $cores) -}}
{{- if lt $has (float64 $threads) }}
{{- fail (printf "workers.%s.resources.cpu %s: a replica needs %v" (include "headlight.group" .) $cores $threads) }}
{{- end }}
{{- end }}

{{- define "headlight.check.reach" -}}
{{- if and .Values.monitoring.scrape .Values.apiKeys.secretName (not .Values.monitoring.secretName) (not .Values.settings.public_metrics) }}
{{- fail "monitoring.secretName: with API keys, Prometheus needs a key; or set settings.public_metrics to true, or monitoring.scrape to false" }}
{{- end }}
{{- if and (hasPrefix "http" (.Values.settings.tracing | default "")) .Values.networkPolicy.enabled (not .Values.networkPolicy.extraEgress) }}
{{- fail (printf "networkPolicy.extraEgress: allow the way to settings.tracing, which is %s" .Values.settings.tracing) }}
{{- end }}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}
{{- fail "httpRoute.parentRefs: name the gateway it belongs to" }}
{{- end }}
{{- end }}
