{{/* What is watched of this release alone, where one Prometheus and one Grafana see many. */}}

{{/* The labels that scrapes put on every series of this release, as a selector. */}}
{{- define "headlight.ours" -}}
namespace={{ quote .Release.Namespace }}, release={{ quote .Release.Name }}
{{- end }}

{{/* A name that no other release has: neither part may hold a dot. */}}
{{- define "headlight.unique" -}}
{{ .Release.Namespace }}.{{ .Release.Name }}
{{- end }}

{{/* The same, short enough for a uid of Grafana's, which has 40 characters. */}}
{{- define "headlight.uid" -}}
{{ include "headlight.unique" . | sha256sum | trunc 12 }}
{{- end }}

{{/* Metadata of what Prometheus' operator looks for. Takes the root and the name. */}}
{{- define "headlight.watched" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 }}
{{ include "headlight.metadata" $root }}
  {{- with $root.Values.monitoring.labels }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* Where the series of a scraped pod come from. */}}
{{- define "headlight.podLabels" -}}
- {sourceLabels: [__meta_kubernetes_pod_name], targetLabel: pod}
- {targetLabel: namespace, replacement: {{ quote .Release.Namespace }}}
- {targetLabel: release, replacement: {{ quote .Release.Name }}}
{{- end }}
