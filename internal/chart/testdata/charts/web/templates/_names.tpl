{{- define "web.name" -}}{{ .Release.Name }}{{- end -}}
