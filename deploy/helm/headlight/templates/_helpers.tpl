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

{{/* Cores of a replica, as Ray counts them; with a GPU its lane, and the event loop with its tokenizer. */}}
{{- define "headlight.cores" -}}
{{ eq .Values.device "cuda" | ternary 2 .Values.workers.cpu.threads }}
{{- end }}

{{/* How many models a worker pod has a replica of: a Deployment's has one of each. */}}
{{- define "headlight.perPod" -}}
{{ eq .Values.kind "Deployment" | ternary (len .Values.models | add1) 1 }}
{{- end }}

{{/* An image in full. Takes the root and cpu or cuda. */}}
{{- define "headlight.image" -}}
{{- $root := index . 0 -}}
{{- $image := $root.Values.image -}}
{{- $build := index $image (index . 1) -}}
{{- $tag := $build.tag | default (printf "%s-%s" $root.Chart.AppVersion (index . 1)) -}}
{{ $image.registry }}/{{ $image.repository }}{{ if $build.digest }}@{{ $build.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/* Seconds that what stands before HAProxy waits: beyond its own, so that its answer comes first. */}}
{{- define "headlight.outside" -}}
{{ add (include "headlight.seconds" . | fromJson | dig "deadline" 0 | ceil | int) 25 }}
{{- end }}
