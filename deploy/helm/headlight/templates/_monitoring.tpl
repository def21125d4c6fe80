{{/* What is scraped of this release; its rules and dashboard are in the chart headlight-monitoring. */}}

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

{{/* The key of Prometheus, where the service asks for one. */}}
{{- define "headlight.key" -}}
{{- if and .Values.apiKeys.secretName .Values.monitoring.secretName }}
authorization:
  credentials: {name: {{ .Values.monitoring.secretName }}, key: {{ .Values.monitoring.secretKey }}}
{{- end }}
{{- end }}
