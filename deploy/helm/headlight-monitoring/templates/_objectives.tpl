{{/* Rules and the dashboard with the objectives of the values in place of the project's own. Takes the root and the text. */}}
{{- define "headlight-monitoring.adapted" -}}
{{- $own := (index . 0).Values.objectives -}}
{{- $bound := eq $own.seconds (floor $own.seconds) | ternary (printf "le=~\"%v([.]0)?\"" $own.seconds) (printf "le=\"%v\"" $own.seconds) -}}
{{- index . 1
  | replace "(1 - 0.999)" (printf "(1 - %v)" $own.availability)
  | replace "(1 - 0.99)" (printf "(1 - %v)" $own.latency)
  | replace "99 % of" (printf "%v %% of" (mulf $own.latency 100))
  | replace "le=\"0.25\"" $bound
  | replace "250 ms" (printf "%v ms" (mulf $own.seconds 1000)) }}
{{- end }}
