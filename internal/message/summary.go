package message

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

// Summary is what a person is told of a delivery. Nothing in it is escaped for any markup.
type Summary struct {
	// Subject is one line.
	Subject string
	// Shared say of a digest what all have in common.
	Shared []Row
	Items  []Entry
	// Omitted is how many notifications are only counted.
	Omitted int
	// ID is the delivery's.
	ID string
}

// Entry is one notification.
type Entry struct {
	Title    string
	Severity relay.Severity
	Rows     []Row
}

// Row is a value and what it is called, each one line of visible characters.
type Row struct{ Name, Value string }

// Builder makes pages. It is immutable and may be used concurrently.
type Builder struct{ meanings map[string]string }

// NewBuilder returns a Writer that knows what each topic of the catalog means.
func NewBuilder() *Builder {
	w := &Builder{meanings: map[string]string{}}
	for _, t := range append(relay.Topics(), relay.OperationalTopics()...) {
		w.meanings[t.Name] = strings.TrimSuffix(t.Meaning, ".")
	}
	return w
}

// Build says what a delivery of at least one notification is about.
func (w *Builder) Build(d relay.Delivery) *Summary {
	p := &Summary{ID: d.ID}
	worst := relay.SeverityQuiet
	list := d.Notifications[:min(len(d.Notifications), MaxListed)]
	for _, n := range list {
		one := w.entry(n)
		worst = max(worst, one.Severity)
		p.Items = append(p.Items, one)
	}
	if d.Digest == nil {
		p.Subject = severityLabel(worst) + p.Items[0].Title
		if hub := SingleLine(d.Notifications[0].Hub); hub != "" {
			p.Subject += " (hub " + relay.Truncate(hub, 60) + ")"
		}
		return p
	}
	count := max(d.Digest.Count, len(d.Notifications))
	p.Omitted = count - len(list)
	p.Subject = severityLabel(worst) + strconv.Itoa(count) + " notifications"
	if count == 1 {
		p.Subject = severityLabel(worst) + "1 notification"
	}
	for _, name := range slices.Sorted(maps.Keys(d.Digest.Shared)) {
		p.Subject += ", " + name + " " + relay.Truncate(SingleLine(d.Digest.Shared[name]), 60)
	}
	for _, topic := range slices.Sorted(maps.Keys(d.Digest.Topics)) {
		p.Shared = append(p.Shared, Row{topic, strconv.Itoa(d.Digest.Topics[topic])})
	}
	if !d.Digest.First.IsZero() {
		p.Shared = append(p.Shared, Row{"First", formatTime(d.Digest.First)}, Row{"Last", formatTime(d.Digest.Last)})
	}
	return p
}

// entry says of a notification what happened, then the state, the error and the identifiers that people search for.
func (w *Builder) entry(n relay.Notification) Entry {
	e, err := n.Envelope()
	if err != nil {
		e.Context.HubID = n.Hub
	}
	severity := relay.SeverityOf(n.Topic, e.Object)
	what := w.meanings[n.Topic]
	if what == "" {
		what = n.Topic
	}
	if state := SingleLine(e.Object.State); state != "" {
		what += ": " + relay.Truncate(state, 60)
	}
	if n.IsSample() {
		what, severity = "Test: "+what+" (nothing happened)", relay.SeverityQuiet
	}
	one := Entry{Title: SingleLine(what), Severity: severity}
	add := func(name string, values ...string) {
		values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return SingleLine(v) == "" })
		if len(values) > 0 {
			one.Rows = append(one.Rows, Row{name, relay.Truncate(SingleLine(strings.Join(values, ", ")), maxValue)})
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
	if at := n.StoredAt(); !at.IsZero() {
		add("Time", formatTime(at))
	}
	add("Notification", n.ID)
	return one
}

func severityLabel(s relay.Severity) string {
	switch s {
	case relay.SeverityBad:
		return "[PROBLEM] "
	case relay.SeverityGood:
		return "[OK] "
	}
	return "[INFO] "
}

func formatTime(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 UTC") }

// SingleLine makes one line of what a producer wrote, as Visible shows it.
func SingleLine(text string) string { return strings.Join(strings.Fields(StripInvisible(text)), " ") }

// StripInvisible leaves out what changes the direction of writing or cannot be seen. Line breaks, each a \n, and tabs stay.
func StripInvisible(text string) string {
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
func (p *Summary) WriteText(w io.Writer) error {
	var b strings.Builder
	rows := func(list []Row) {
		for _, r := range list {
			fmt.Fprintf(&b, "%s: %s\n", r.Name, r.Value)
		}
	}
	if len(p.Shared) > 0 {
		rows(p.Shared)
		b.WriteByte('\n')
	}
	for _, one := range p.Items {
		b.WriteString(one.Title + "\n")
		rows(one.Rows)
		b.WriteByte('\n')
	}
	if p.Omitted > 0 {
		fmt.Fprintf(&b, "and %d more\n\n", p.Omitted)
	}
	fmt.Fprintf(&b, "Delivery: %s\n", p.ID)
	_, err := io.WriteString(w, b.String())
	return err
}
