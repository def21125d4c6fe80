{{/* What is scraped of this release; its rules and dashboard are in the chart headlight-monitoring. */}}

{{/* Metadata of what Prometheus' operator looks for. Takes the root and the name. */}}
{{- define "headlight.watched" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 }}
{{ include "headlight.metadata" $root }}
  {{- with $root.Values.monitoring.labels }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* Where the series of a scraped pod come from. One that does not run yet, or has ended, is not down. */}}
{{- define "headlight.podLabels" -}}
- {sourceLabels: [__meta_kubernetes_pod_phase], regex: Pending|Succeeded|Failed, action: drop}
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

{{/* The kind of what Prometheus is told by; empty where it is told nothing. */}}
{{- define "headlight.scrapedBy" -}}
{{ .Values.monitoring.scrape | ternary .Values.monitoring.kind "" }}
{{- end }}

{{/* What is kept of the page of Ray's agent, and of HAProxy's. */}}
{{- define "headlight.rayKept" -}}
- {sourceLabels: [__name__], regex: ray_serve_application_status, action: keep}
{{- end }}

{{- define "headlight.proxyKept" -}}
- {sourceLabels: [__name__], regex: "haproxy_(frontend_(http_requests|http_responses|denied_connections)|server_http_responses)_total", action: keep}
{{- end }}
