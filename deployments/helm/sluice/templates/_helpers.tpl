{{/* Labels that every object of the release carries. */}}
{{- define "sluice.labels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Labels that select the pods of one component: call with (dict "root" . "component" "driver"). */}}
{{- define "sluice.selectorLabels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Name of an object of one component: call with (dict "root" . "component" "driver"). */}}
{{- define "sluice.name" -}}
{{- printf "sluice-%s" .component -}}
{{- end }}

{{/* Image reference from {repository, tag}; the tag defaults to the chart's appVersion: call with (dict "root" . "image" .Values.driver.image). */}}
{{- define "sluice.image" -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end }}
