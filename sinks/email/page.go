package email

import (
	"html/template"
	"io"

	"github.com/hubrelay/hubrelay/internal/message"
	"github.com/hubrelay/hubrelay/relay"
)

func severityColor(s relay.Severity) string {
	switch s {
	case relay.SeverityBad:
		return "#d72b3f"
	case relay.SeverityGood:
		return "#2eb67d"
	case relay.SeverityChange:
		return "#2f81d6"
	}
	return "#8a8d91"
}

func writeHTML(w io.Writer, p *message.Summary) error { return htmlTemplate().Execute(w, p) }

// htmlTemplate is parsed for each mail, which costs less than sending it. html/template escapes the text of producers.
func htmlTemplate() *template.Template {
	return template.Must(template.New("mail").Funcs(template.FuncMap{"color": severityColor}).Parse(`<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>{{.Subject}}</title></head>
<body style="font-family:sans-serif;font-size:14px">
{{define "rows"}}<table cellpadding="3" style="font-size:14px">{{range .}}<tr><td style="color:#666" valign="top">{{.Name}}</td><td>{{.Value}}</td></tr>
{{end}}</table>{{end -}}
{{if .Shared}}{{template "rows" .Shared}}{{end}}
{{range .Items}}<div style="border-left:4px solid {{color .Severity}};padding-left:8px;margin:8px 0"><b>{{.Title}}</b>
{{template "rows" .Rows}}</div>
{{end}}{{if .Omitted}}<p>and {{.Omitted}} more</p>
{{end}}<p style="color:#999;font-size:12px">Delivery: {{.ID}}</p>
</body></html>
`))
}
