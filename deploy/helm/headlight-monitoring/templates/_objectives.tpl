{{/* Rules and the dashboard with the objectives of the values in place of the project's own. Takes the root and the text. */}}
{{- define "headlight-monitoring.adapted" -}}
{{- $own := (index . 0).Values.objectives -}}
{{- $bound := eq $own.seconds (floor $own.seconds) | ternary (printf "le=~\"%v([.]0)?\"" $own.seconds) (printf "le=\"%v\"" $own.seconds) -}}
{{- /* Marks first: one value may be the project's own of the other */}}
{{- index . 1
  | replace "(1 - 0.999)" "(1 - @availability)" | replace "99.9 %" "@availability %"
  | replace "(1 - 0.99)" "(1 - @latency)" | replace "99 % of" "@latency % of"
  | replace "(1 - @availability)" (printf "(1 - %v)" $own.availability)
  | replace "(1 - @latency)" (printf "(1 - %v)" $own.latency)
  | replace "@availability %" (printf "%v %%" (mulf $own.availability 100))
  | replace "@latency %" (printf "%v %%" (mulf $own.latency 100))
  | replace "le=\"0.25\"" $bound
  | replace "250 ms" (printf "%v ms" (mulf $own.seconds 1000)) }}
{{- end }}
