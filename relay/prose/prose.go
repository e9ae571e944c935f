package prose

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/hubrelay/hubrelay/relay"
)

// MaxListed is how many notifications of a digest are listed; the others are counted.
const MaxListed = 50

// maxValue bounds each value, in bytes.
const maxValue = 4 << 10

// Page is what a person is told of a delivery. Nothing in it is escaped for any markup.
type Page struct {
	// Subject is one line.
	Subject string
	// Lines say of a digest what all have in common.
	Lines []Row
	Items []Item
	// More is how many notifications are only counted.
	More int
	// ID is the delivery's.
	ID string
}

// Item is one notification.
type Item struct {
	Title    string
	Severity relay.Severity
	Rows     []Row
}

// Row is a value and what it is called, each one line of visible characters.
type Row struct{ Name, Value string }

// Writer makes pages. It is immutable and may be used concurrently.
type Writer struct{ meanings map[string]string }

// NewWriter returns a Writer that knows what each topic of the catalog means.
func NewWriter() *Writer {
	w := &Writer{meanings: map[string]string{}}
	for _, t := range append(relay.Topics(), relay.OperationalTopics()...) {
		w.meanings[t.Name] = strings.TrimSuffix(t.Meaning, ".")
	}
	return w
}

// Page says what a delivery of at least one notification is about.
func (w *Writer) Page(d relay.Delivery) *Page {
	p := &Page{ID: d.ID}
	worst := relay.SeverityQuiet
	list := d.Notifications[:min(len(d.Notifications), MaxListed)]
	for _, n := range list {
		one := w.item(n)
		worst = max(worst, one.Severity)
		p.Items = append(p.Items, one)
	}
	if d.Digest == nil {
		p.Subject = subjectWord(worst) + p.Items[0].Title
		if hub := Clean(d.Notifications[0].Hub); hub != "" {
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
		p.Subject += ", " + name + " " + relay.Clip(Clean(d.Digest.By[name]), 60)
	}
	for _, topic := range slices.Sorted(maps.Keys(d.Digest.Topics)) {
		p.Lines = append(p.Lines, Row{topic, strconv.Itoa(d.Digest.Topics[topic])})
	}
	if !d.Digest.First.IsZero() {
		p.Lines = append(p.Lines, Row{"First", clock(d.Digest.First)}, Row{"Last", clock(d.Digest.Last)})
	}
	return p
}

// item says of a notification what happened, then the state, the error and the identifiers that people search for.
func (w *Writer) item(n relay.Notification) Item {
	e, err := n.Envelope()
	if err != nil {
		e.Context.HubID = n.Hub
	}
	severity := relay.SeverityOf(n.Topic, e.Object)
	what := w.meanings[n.Topic]
	if what == "" {
		what = n.Topic
	}
	if state := Clean(e.Object.State); state != "" {
		what += ": " + relay.Clip(state, 60)
	}
	if n.IsSample() {
		what, severity = "Test: "+what+" (nothing happened)", relay.SeverityQuiet
	}
	one := Item{Title: Clean(what), Severity: severity}
	add := func(name string, values ...string) {
		values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return Clean(v) == "" })
		if len(values) > 0 {
			one.Rows = append(one.Rows, Row{name, relay.Clip(Clean(strings.Join(values, ", ")), maxValue)})
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
	return one
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

func clock(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 UTC") }

// Clean makes one line of what a producer wrote, as Visible shows it.
func Clean(text string) string { return strings.Join(strings.Fields(Visible(text)), " ") }

// Visible leaves out what changes the direction of writing or cannot be seen. Line breaks, each a \n, and tabs stay.
func Visible(text string) string {
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r), r == unicode.ReplacementChar:
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
}

// WriteText writes the page without its subject.
func (p *Page) WriteText(w io.Writer) error {
	var b strings.Builder
	rows := func(list []Row) {
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
