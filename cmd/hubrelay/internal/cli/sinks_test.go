package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

func TestSinksTable(t *testing.T) {
	t.Parallel()
	one, five := int64(1), int64(123456789)
	old := 90000.0
	var rows [][]string
	for _, s := range []sinkInfo{
		{
			Name: "a-sink-of-twenty-characters", Type: "webhook", State: "disabled", Backlog: five, Parked: five,
			Dead:     five,
			InFlight: &one, Delivered: &five, OldestSeconds: &old, LastSuccess: "2020-01-01T00:00:00Z",
			Topics: "*.error",
			Failed: map[string]int64{"dns": 7, "tls": 123456},
		},
		{Name: "alerts", Type: "slack", State: "active", InFlight: &one, Delivered: &one},
	} {
		rows = append(rows, s.tableRow())
	}
	var out bytes.Buffer
	if err := printSinks(term.Streams{Out: &out}, rows); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > term.TableWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, want := range []string{
		"NAME", "STATE", "WAITING", "RETRYING", "DEAD", "NOW", "OLDEST", "LAST OK", "SENT",
		"FAILED", "25h", "123k",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}

func TestShortReason(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		"permanent: render the template: line 3: there is no field": "template: line 3: there is no field",
		"exhausted: post to example.com: answered 500":              "answered 500",
		"answered 400": "answered 400", "permanent": "permanent", "no\x1b[2J": "no\uFFFD[2J",
	} {
		if got := shortReason(reason); got != want {
			t.Errorf("shortReason(%q) = %q, want %q", reason, got, want)
		}
	}
}

// The last failure is shown while it may be relevant.
func TestSinkInfo_LastFailure(t *testing.T) {
	t.Parallel()
	at := func(ago time.Duration) string { return time.Now().Add(-ago).UTC().Format(time.RFC3339Nano) }
	removed := false
	failed := sinkInfo{Name: "billing", LastError: "post to example.com: answered 500", LastErrorAt: at(3 * time.Hour)}
	const want = "billing: failed 3h ago: answered 500"
	for _, c := range []struct {
		name string
		with func(*sinkInfo)
		want string
	}{
		{"no delivery", func(*sinkInfo) {}, want},
		{"earlier delivery", func(s *sinkInfo) { s.LastSuccess = at(4 * time.Hour) }, want},
		{"later delivery", func(s *sinkInfo) { s.LastSuccess = at(time.Hour) }, ""},
		{"later delivery and a scheduled retry", func(s *sinkInfo) { s.LastSuccess, s.Parked = at(time.Hour), 1 }, want},
		{"removed", func(s *sinkInfo) { s.Configured = &removed }, ""},
		{"older daemon", func(s *sinkInfo) { s.LastError, s.LastErrorAt = "", "" }, ""},
	} {
		s := failed
		c.with(&s)
		if got := s.lastFailure(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if got := term.TruncateToWidth(want, 20); got != "billing: failed 3h …" || term.TruncateToWidth(want, 0) != want {
		t.Errorf("TruncateToWidth(%q, 20) = %q", want, got)
	}
}

func TestSinkInfo_NoteLines(t *testing.T) {
	t.Parallel()
	s := sinkInfo{Name: "billing", State: "disabled", Reason: "answered 410", Dropped: 50}
	got := strings.Join(s.noteLines(), "\n")
	want := "billing: answered 410; 'hubrelay sinks resume' enables it\n" +
		"billing: 50 dropped so far because the backlog was full; fix the receiver or raise backlog"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if s = (sinkInfo{Name: "billing", State: "active"}); len(s.noteLines()) != 0 {
		t.Errorf("active sink: got notes %q, want none", s.noteLines())
	}
}

func TestParseSince(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"2h": "2026-11-21T02:00:00Z", "90m": "2026-11-21T02:30:00Z",
		"2026-11-20T08:00:00+01:00": "2026-11-20T07:00:00Z",
		"-2h":                       "", "yesterday": "", "2026-11-20": "",
	} {
		got, err := parseSince(text, now)
		if (err == nil) != (want != "") || err == nil && got.UTC().Format(time.RFC3339) != want {
			t.Errorf("parseSince(%q) = %s, %v, want %q", text, got, err, want)
		}
	}
}
