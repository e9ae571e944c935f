package email

import (
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/hubrelay/hubrelay/relay"
)

// page is what a mail says.
type page struct {
	Subject string
	Lines   []row // of a digest what all have in common
	Items   []item
	More    int // notifications that are only counted
	ID      string
}

// item is one notification.
type item struct {
	Title  string
	Colour string
	Rows   []row
}

type row struct{ Name, Value string }

func (m *composer) page(d relay.Delivery) *page {
	p := &page{ID: d.ID}
	worst := relay.SeverityQuiet
	list := d.Notifications[:min(len(d.Notifications), maxListed)]
	for _, n := range list {
		one, severity := m.item(n)
		worst = max(worst, severity)
		p.Items = append(p.Items, one)
	}
	if d.Digest == nil {
		p.Subject = subjectWord(worst) + p.Items[0].Title
		if hub := clean(d.Notifications[0].Hub); hub != "" {
			p.Subject += " (hub " + relay.Clip(hub, 60) + ")"
		}
		return p
	}
	count := max(d.Digest.Count, len(d.Notifications))
	p.More = count - len(list)
	p.Subject = subjectWord(worst) + strconv.Itoa(count) + " notifications"
	if count == 1 {
		p.Subject = subjectWord(worst) + "1 notification"
	}
	for _, name := range slices.Sorted(maps.Keys(d.Digest.By)) {
		p.Subject += ", " + name + " " + relay.Clip(clean(d.Digest.By[name]), 60)
	}
	for _, topic := range slices.Sorted(maps.Keys(d.Digest.Topics)) {
		p.Lines = append(p.Lines, row{topic, strconv.Itoa(d.Digest.Topics[topic])})
	}
	if !d.Digest.First.IsZero() {
		p.Lines = append(p.Lines, row{"First", clock(d.Digest.First)}, row{"Last", clock(d.Digest.Last)})
	}
	return p
}

// item says of a notification what happened, then the state, the error and the identifiers that people search for.
func (m *composer) item(n relay.Notification) (item, relay.Severity) {
	e, err := n.Envelope()
	if err != nil {
		e.Context.HubID = n.Hub
	}
	severity := relay.SeverityOf(n.Topic, e.Object)
	what := m.topics[n.Topic]
	if what == "" {
		what = n.Topic
	}
	if state := clean(e.Object.State); state != "" {
		what += ": " + relay.Clip(state, 60)
	}
	if n.IsSample() {
		what, severity = "Test: "+what+" (nothing happened)", relay.SeverityQuiet
	}
	one := item{Title: clean(what), Colour: colour(severity)}
	add := func(name string, values ...string) {
		values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return clean(v) == "" })
		if len(values) > 0 {
			one.Rows = append(one.Rows, row{name, relay.Clip(clean(strings.Join(values, ", ")), maxValue)})
		}
	}
	add("Topic", n.Topic)
	add("Error", e.Object.Error)
	add("State", e.Object.State)
	add("Object", e.Object.ID)
	add("Hub", e.Context.HubID)
	add("Account", e.Context.AccountID)
	add("Environments", e.Context.Environments...)
	add("Clusters", e.Context.Clusters...)
	add("Containers", e.Context.Containers...)
	add("DNS zones", e.Context.DNSZones...)
	if at := n.Stored(); !at.IsZero() {
		add("Time", clock(at))
	}
	add("Notification", n.ID)
	return one, severity
}

func subjectWord(s relay.Severity) string {
	switch s {
	case relay.SeverityBad:
		return "[PROBLEM] "
	case relay.SeverityGood:
		return "[OK] "
	}
	return "[INFO] "
}

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

func clock(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 UTC") }

// clean makes one line of what a producer wrote, without what changes the direction of writing or cannot be seen.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r), r == unicode.ReplacementChar:
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	return strings.Join(strings.Fields(text), " ")
}

func (p *page) writeText(w io.Writer) error {
	var b strings.Builder
	rows := func(list []row) {
		for _, r := range list {
			fmt.Fprintf(&b, "%s: %s\n", r.Name, r.Value)
		}
	}
	if len(p.Lines) > 0 {
		rows(p.Lines)
		b.WriteByte('\n')
	}
	for _, one := range p.Items {
		b.WriteString(one.Title + "\n")
		rows(one.Rows)
		b.WriteByte('\n')
	}
	if p.More > 0 {
		fmt.Fprintf(&b, "and %d more\n\n", p.More)
	}
	fmt.Fprintf(&b, "Delivery: %s\n", p.ID)
	_, err := io.WriteString(w, b.String())
	return err
}

func (p *page) writeHTML(w io.Writer) error { return layout().Execute(w, p) }

// layout is parsed for each mail, which costs less than the mail. html/template escapes whatever a producer wrote.
func layout() *template.Template {
	return template.Must(template.New("mail").Parse(`<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>{{.Subject}}</title></head>
<body style="font-family:sans-serif;font-size:14px">
{{define "rows"}}<table cellpadding="3" style="font-size:14px">{{range .}}<tr><td style="color:#666" valign="top">{{.Name}}</td><td>{{.Value}}</td></tr>
{{end}}</table>{{end -}}
{{if .Lines}}{{template "rows" .Lines}}{{end}}
{{range .Items}}<div style="border-left:4px solid {{.Colour}};padding-left:8px;margin:8px 0"><b>{{.Title}}</b>
{{template "rows" .Rows}}</div>
{{end}}{{if .More}}<p>and {{.More}} more</p>
{{end}}<p style="color:#999;font-size:12px">Delivery: {{.ID}}</p>
</body></html>
`))
}
