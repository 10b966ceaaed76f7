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

{{/* Kinds of jobs, as quota/jobs knows them, and those that the configuration describes: a list of {group, versions, resource, suspend}. A test keeps it equal to that table. */}}
{{- define "sluice.jobKinds" -}}
- {group: batch, versions: [v1], resource: jobs, kind: Job, suspend: spec.suspend, sets: [{path: spec.template}]}
- {group: jobset.x-k8s.io, versions: [v1alpha2], resource: jobsets, kind: JobSet, suspend: spec.suspend, sets: [{each: spec.replicatedJobs, path: template.spec.template}]}
- {group: kubeflow.org, versions: [v1], resource: pytorchjobs, kind: PyTorchJob, suspend: spec.runPolicy.suspend, sets: [{each: spec.pytorchReplicaSpecs, path: template}]}
- {group: kubeflow.org, versions: [v1], resource: tfjobs, kind: TFJob, suspend: spec.runPolicy.suspend, sets: [{each: spec.tfReplicaSpecs, path: template}]}
- {group: kubeflow.org, versions: [v1], resource: xgboostjobs, kind: XGBoostJob, suspend: spec.runPolicy.suspend, sets: [{each: spec.xgbReplicaSpecs, path: template}]}
- {group: kubeflow.org, versions: [v1], resource: paddlejobs, kind: PaddleJob, suspend: spec.runPolicy.suspend, sets: [{each: spec.paddleReplicaSpecs, path: template}]}
- {group: kubeflow.org, versions: [v1], resource: jaxjobs, kind: JAXJob, suspend: spec.runPolicy.suspend, sets: [{each: spec.jaxReplicaSpecs, path: template}]}
- {group: trainer.kubeflow.org, versions: [v1alpha1], resource: trainjobs, kind: TrainJob, suspend: spec.suspend, sets: [], own: true}
- {group: kubeflow.org, versions: [v2beta1, v1], resource: mpijobs, kind: MPIJob, suspend: spec.runPolicy.suspend, sets: [{each: spec.mpiReplicaSpecs, path: template}]}
- {group: ray.io, versions: [v1], resource: rayjobs, kind: RayJob, suspend: spec.suspend, sets: [{path: spec.rayClusterSpec.headGroupSpec.template}, {each: spec.rayClusterSpec.workerGroupSpecs, path: template}, {path: spec.submitterPodTemplate}]}
- {group: ray.io, versions: [v1], resource: rayclusters, kind: RayCluster, suspend: spec.suspend, sets: [{path: spec.headGroupSpec.template}, {each: spec.workerGroupSpecs, path: template}]}
- {group: batch.volcano.sh, versions: [v1alpha1], resource: jobs, kind: Job, suspend: ""}
{{- range .Values.quota.config.jobKinds }}
- {group: {{ .group }}, versions: [{{ .version }}], resource: {{ .resource }}, kind: {{ .kind }}, suspend: {{ .suspend | default "" | quote }}, sets: {{ .podSets | default list | toJson }}}
{{- end }}
{{- end }}

{{/* CEL: an object or value has a queue label. */}}
{{- define "sluice.labelled" -}}
(has({{ . }}.metadata) && has({{ . }}.metadata.labels) && 'kueue.x-k8s.io/queue-name' in {{ . }}.metadata.labels)
{{- end }}

{{/* CEL: all fields on a path are there; call with (dict "of" "object" "path" "spec.template"). */}}
{{- define "sluice.there" -}}
{{- $at := .of -}}{{- $all := list -}}
{{- range splitList "." .path -}}{{- $at = printf "%s.%s" $at . -}}{{- $all = append $all (printf "has(%s)" $at) -}}{{- end -}}
{{- join " && " $all -}}
{{- end }}

{{/*
CEL: one of the pod templates of a job has a queue label. A kind that has none of its own (own) is told by the label of the job alone; where it is not
told where templates are, every job may have one.
Sets of pods are elements of a list or values of a map.
*/}}
{{- define "sluice.templateLabelled" -}}
{{- $any := list -}}
{{- range .sets -}}
{{- if .each -}}
{{- $element := printf "%s && %s" (include "sluice.there" (dict "of" "e" "path" .path)) (include "sluice.labelled" (printf "e.%s" .path)) -}}
{{- $any = append $any (printf "(%s && [object.%s].exists(l, (type(l) == list ? l : l.map(k, l[k])).exists(e, %s)))" (include "sluice.there" (dict "of" "object" "path" .each)) .each $element) -}}
{{- else -}}
{{- $any = append $any (printf "(%s && %s)" (include "sluice.there" (dict "of" "object" "path" .path)) (include "sluice.labelled" (printf "object.%s" .path))) -}}
{{- end -}}
{{- end -}}
{{- if $any -}}{{- join " || " $any -}}{{- else if .own -}}false{{- else -}}true{{- end -}}
{{- end }}

{{/* Rules that match jobs of all kinds at the given operations: call with (dict "root" . "operations" (list "UPDATE")). */}}
{{- define "sluice.jobRules" -}}
{{- range include "sluice.jobKinds" .root | fromYamlArray }}
- apiGroups: [{{ .group }}]
  apiVersions: {{ $.versions | default .versions | toJson }}
  operations: {{ $.operations | toJson }}
  resources: [{{ .resource }}{{ if $.status }}, {{ .resource }}/status{{ end }}]
{{- end }}
{{- end }}

{{/* Says in CEL whether a job of any kind, oldObject, is suspended. */}}
{{- define "sluice.suspended" -}}
{{- $paths := list }}
{{- range include "sluice.jobKinds" . | fromYamlArray }}{{ if .suspend }}{{ $paths = append $paths .suspend }}{{ end }}{{ end }}
{{- $all := list }}
{{- range $paths | uniq }}
{{- $at := "oldObject" }}{{ $one := list }}
{{- range splitList "." . }}{{ $at = printf "%s.%s" $at . }}{{ $one = append $one (printf "has(%s)" $at) }}{{ end }}
{{- $all = append $all (printf "(%s)" (join " && " (append $one $at))) }}
{{- end }}
{{- join " || " $all }}
{{- end }}

{{/* Says in CEL whether jobs of the request's kind can be suspended. */}}
{{- define "sluice.suspendable" -}}
{{- $all := list }}
{{- range include "sluice.jobKinds" . | fromYamlArray }}{{ if not .suspend }}{{ $all = append $all (printf "(request.kind.group == '%s' && request.kind.kind == '%s')" .group .kind) }}{{ end }}{{ end }}
{{- if $all }}!({{ join " || " $all }}){{ else }}true{{ end }}
{{- end }}

{{/* Who admits: embedded or kueue. */}}
{{- define "sluice.engine" -}}
{{- .Values.quota.config.engine | default "embedded" -}}
{{- end }}

{{/* The label that names a queue. */}}
{{- define "sluice.queueLabel" -}}
{{- if eq (include "sluice.engine" .) "kueue" }}quota.sluice.dev/queue-name{{ else }}kueue.x-k8s.io/queue-name{{ end -}}
{{- end }}
