// Package message builds plain-text summaries of deliveries for sinks whose readers are people. A summary has a subject
// and, for each notification, a title, the state, the error, and the identifiers. The package also groups messages into
// threads.
//
// Markup, limits of a service, and code for one sink do not belong here.
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

// MaxListed is the maximum number of listed notifications of a digest. The others are only counted.
const MaxListed = 50

// maxValue is the maximum length of each value, in bytes.
const maxValue = 4 << 10

// Summary describes a delivery for people. Its texts are not escaped.
type Summary struct {
	// Subject is one line.
	Subject string
	// Shared contains the number of notifications by topic, and the first and last time of a digest.
	Shared []Row
	Items  []Entry
	// Omitted is the number of notifications that are not listed.
	Omitted int
	// ID is the ID of the delivery.
	ID string
}

// Entry is one notification.
type Entry struct {
	Title    string
	Severity relay.Severity
	Rows     []Row
}

// Row is a value with its name. Both are one line of visible characters.
type Row struct{ Name, Value string }

// Builder builds summaries. It is immutable and safe for concurrent use.
type Builder struct{ meanings map[string]string }

// NewBuilder returns a Builder that describes all topics of the catalog.
func NewBuilder() *Builder {
	w := &Builder{meanings: map[string]string{}}
	for _, t := range append(relay.Topics(), relay.OperationalTopics()...) {
		w.meanings[t.Name] = strings.TrimSuffix(t.Meaning, ".")
	}
	return w
}

// Build returns the summary of a delivery, which must have at least one notification.
func (b *Builder) Build(d relay.Delivery) *Summary {
	p := &Summary{ID: d.ID}
	highest := relay.SeverityQuiet
	list := d.Notifications[:min(len(d.Notifications), MaxListed)]
	for _, n := range list {
		entry := b.newEntry(n)
		highest = max(highest, entry.Severity)
		p.Items = append(p.Items, entry)
	}
	if d.Digest == nil {
		p.Subject = severityLabel(highest) + p.Items[0].Title
		if hub := SingleLine(d.Notifications[0].Hub); hub != "" {
			p.Subject += " (hub " + relay.Truncate(hub, 60) + ")"
		}
		return p
	}
	count := max(d.Digest.Count, len(d.Notifications))
	p.Omitted = count - len(list)
	p.Subject = severityLabel(highest) + strconv.Itoa(count) + " events"
	if count == 1 {
		p.Subject = severityLabel(highest) + "1 event"
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

// newEntry returns a title, the error, the state, and the identifiers of a notification.
func (b *Builder) newEntry(n relay.Notification) Entry {
	e, err := n.Envelope()
	if err != nil {
		e.Context.HubID = n.Hub
	}
	severity := relay.SeverityOf(n.Topic, e.Object)
	title := b.meanings[n.Topic]
	if title == "" {
		title = n.Topic
	}
	if state := SingleLine(e.Object.State); state != "" {
		title += ": " + relay.Truncate(state, 60)
	}
	if n.IsSample() {
		title, severity = "Test: "+title+" (nothing happened)", relay.SeverityQuiet
	}
	entry := Entry{Title: SingleLine(title), Severity: severity}
	add := func(name string, values ...string) {
		values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return SingleLine(v) == "" })
		if len(values) > 0 {
			text := SingleLine(strings.Join(values, ", "))
			entry.Rows = append(entry.Rows, Row{name, relay.Truncate(text, maxValue)})
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
	return entry
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

// SingleLine returns a text of a producer as one line, without the characters that [StripInvisible] removes.
func SingleLine(text string) string { return strings.Join(strings.Fields(StripInvisible(text)), " ") }

// StripInvisible removes characters that are invisible or change the direction of text. It keeps tabs, and converts
// line breaks to \n.
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

// WriteText writes the summary without its subject.
func (s *Summary) WriteText(w io.Writer) error {
	var b strings.Builder
	rows := func(list []Row) {
		for _, r := range list {
			fmt.Fprintf(&b, "%s: %s\n", r.Name, r.Value)
		}
	}
	if len(s.Shared) > 0 {
		rows(s.Shared)
		b.WriteByte('\n')
	}
	for _, entry := range s.Items {
		b.WriteString(entry.Title + "\n")
		rows(entry.Rows)
		b.WriteByte('\n')
	}
	if s.Omitted > 0 {
		fmt.Fprintf(&b, "and %d more\n\n", s.Omitted)
	}
	fmt.Fprintf(&b, "Delivery: %s\n", s.ID)
	_, err := io.WriteString(w, b.String())
	return err
}
