{{/* The image that the operator runs in. */}}
{{- define "weft.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ with .tag }}:{{ . }}{{ end }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}
{{- end -}}

{{/* The version as the value of a label. */}}
{{- define "weft.labelVersion" -}}
{{ regexReplaceAll "[^a-zA-Z0-9_.-]+" .Chart.AppVersion "_" | trunc 63 }}
{{- end -}}

{{/* Not empty if an image is chosen that needs more rights than Weft's. */}}
{{- define "weft.establishedRights" -}}
{{- with .Values.operandImages -}}
{{ .multus }}{{ .multusDynamicNetworks }}{{ .linuxBridgeMarker }}{{ .ovs }}{{ .kubeMacPool }}
{{- end -}}
{{- end -}}

{{/* True if node state may be requested: by a configuration outside of the chart, or by spec.nmstate of its own. */}}
{{- define "weft.nodeState" -}}
{{- with .Values.networkAddonsConfig -}}
{{- if or (not .create) (hasKey .spec "nmstate") -}}{{ $.Values.nodeState | ternary "yes" "" }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The log level as the operator's environment has it. */}}
{{- define "weft.logLevel" -}}
{{ get (dict "debug" "-1" "info" "0" "warn" "1" "error" "2") .Values.logLevel }}
{{- end -}}
