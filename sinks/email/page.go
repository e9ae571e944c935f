package email

import (
	"html/template"
	"io"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/prose"
)

func colour(s relay.Severity) string {
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

func writeHTML(w io.Writer, p *prose.Page) error { return layout().Execute(w, p) }

// layout is parsed for each mail, which costs less than the mail. html/template escapes whatever a producer wrote.
func layout() *template.Template {
	return template.Must(template.New("mail").Funcs(template.FuncMap{"colour": colour}).Parse(`<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>{{.Subject}}</title></head>
<body style="font-family:sans-serif;font-size:14px">
{{define "rows"}}<table cellpadding="3" style="font-size:14px">{{range .}}<tr><td style="color:#666" valign="top">{{.Name}}</td><td>{{.Value}}</td></tr>
{{end}}</table>{{end -}}
{{if .Lines}}{{template "rows" .Lines}}{{end}}
{{range .Items}}<div style="border-left:4px solid {{colour .Severity}};padding-left:8px;margin:8px 0"><b>{{.Title}}</b>
{{template "rows" .Rows}}</div>
{{end}}{{if .More}}<p>and {{.More}} more</p>
{{end}}<p style="color:#999;font-size:12px">Delivery: {{.ID}}</p>
</body></html>
`))
}
