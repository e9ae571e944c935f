package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestTableFits(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	long := strings.Repeat("long-", 30)
	err := printTable(&out, palette{}, []column{{title: "NAME", maxWidth: 20}, {title: "N", right: true}, {title: "TOPICS"}}, [][]string{
		{"a", "7", "x"}, {long, "12345", long}, {"für", "1", "·"},
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 || lines[1] != "a"+strings.Repeat(" ", 25)+"7  x" || !strings.HasSuffix(lines[2], "…") {
		t.Errorf("printed\n%s", out.String())
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > tableWidth || strings.Contains(line, long) {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// What can be spared goes, the highest first, until the rest fits.
func TestTableLeavesColumnsOut(t *testing.T) {
	t.Parallel()
	columns := []column{{title: "NAME"}, {title: "TYPE", dropOrder: 1}, {title: "NOTE", dropOrder: 2}, {title: "TOPICS", dropOrder: 3}}
	for _, c := range []struct {
		name, note, want string
	}{
		{"a", "b", "NAME  TYPE  NOTE  TOPICS"},
		{strings.Repeat("a", 50), strings.Repeat("b", 20), "NAME  TYPE  NOTE  TOPICS"},
		{strings.Repeat("a", 50), strings.Repeat("b", 40), "NAME  TYPE  NOTE"},
		{strings.Repeat("a", 80), strings.Repeat("b", 60), "NAME  TYPE"},
		{strings.Repeat("a", 110), "b", "NAME"},
	} {
		var out bytes.Buffer
		row := []string{c.name, "webhook", c.note, strings.Repeat("topic,", 20)}
		if err := printTable(&out, palette{}, columns, [][]string{row}); err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(out.String(), "\n")
		if got := strings.Join(strings.Fields(head), "  "); got != c.want || row[3] == "" {
			t.Errorf("%d and %d wide: %s, want %s", len(c.name), len(c.note), got, c.want)
		}
	}
}

func TestSinksTable(t *testing.T) {
	t.Parallel()
	one, five := int64(1), int64(123456789)
	old := 90000.0
	var rows [][]string
	for _, s := range []sinkInfo{
		{
			Name: "a-sink-of-twenty-characters", Type: "webhook", State: "disabled", Backlog: five, Parked: five, Dead: five,
			InFlight: &one, Delivered: &five, OldestSeconds: &old, LastSuccess: "2020-01-01T00:00:00Z", Topics: "*.error",
			Failed: map[string]int64{"dns": 7, "tls": 123456},
		},
		{Name: "alerts", Type: "slack", State: "active", InFlight: &one, Delivered: &one},
	} {
		rows = append(rows, s.tableRow())
	}
	var out bytes.Buffer
	if err := printSinks(streams{out: &out}, rows); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > tableWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, want := range []string{"NAME", "STATE", "WAITING", "RETRYING", "DEAD", "NOW", "OLDEST", "LAST OK", "SENT", "FAILED", "25h", "123k"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}

// In a terminal the reason comes before what else is known of a dead letter, and without one all is whole.
func TestTableWithin(t *testing.T) {
	t.Parallel()
	columns := []column{{title: "ID"}, {title: "HUB", maxWidth: 4, dropOrder: 2}, {title: "TRIES", dropOrder: 1}, {title: "REASON", minWidth: 20}}
	long := strings.Repeat("x", 300)
	row := func(reason string) []string { return []string{"one", "hub-1", "1", reason} }
	for _, c := range []struct {
		width        int
		reason, want string
	}{
		{0, long, "ID   HUB    TRIES  REASON\none  hub-1  1      " + long + "\n"},
		{30, "short", "ID   HUB   TRIES  REASON\none  hub…  1      short\n"},
		{38, long, "ID   HUB   TRIES  REASON\none  hub…  1      " + long[:19] + "…\n"},
		{37, long, "ID   TRIES  REASON\none  1      " + long[:24] + "…\n"},
		{27, long, "ID   REASON\none  " + long[:21] + "…\n"},
	} {
		var out bytes.Buffer
		if err := printTableWithin(&out, palette{}, c.width, columns, [][]string{row(c.reason)}); err != nil || out.String() != c.want {
			t.Errorf("%d columns: %v\n%swant\n%s", c.width, err, out.String(), c.want)
		}
	}
	if columns[1].maxWidth != 4 {
		t.Error("the columns that were given have changed")
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
			t.Errorf("%q became %q, want %q", reason, got, want)
		}
	}
}

// What failed last is shown as long as it may matter.
func TestLastFailure(t *testing.T) {
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
		{"nothing was delivered", func(*sinkInfo) {}, want},
		{"it delivered before", func(s *sinkInfo) { s.LastSuccess = at(4 * time.Hour) }, want},
		{"it delivered since", func(s *sinkInfo) { s.LastSuccess = at(time.Hour) }, ""},
		{"it delivered since, but not all", func(s *sinkInfo) { s.LastSuccess, s.Parked = at(time.Hour), 1 }, want},
		{"it was removed", func(s *sinkInfo) { s.Configured = &removed }, ""},
		{"an older daemon", func(s *sinkInfo) { s.LastError, s.LastErrorAt = "", "" }, ""},
	} {
		s := failed
		c.with(&s)
		if got := s.lastFailure(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if got := truncateToWidth(want, 20); got != "billing: failed 3h …" || truncateToWidth(want, 0) != want {
		t.Errorf("cut to %q", got)
	}
}

func TestSinkNotes(t *testing.T) {
	t.Parallel()
	s := sinkInfo{Name: "billing", State: "disabled", Reason: "answered 410", Dropped: 50}
	got := strings.Join(s.noteLines(), "\n")
	want := "billing: answered 410; 'hubrelay sinks resume' enables it\n" +
		"billing: 50 dropped so far, the oldest of what its backlog has no room for; mend the receiver, or raise backlog"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if s = (sinkInfo{Name: "billing", State: "active"}); len(s.noteLines()) != 0 {
		t.Errorf("%q of a sink that is as it should be", s.noteLines())
	}
}

func TestShortFigures(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0: "0", 99_999: "99999", 100_000: "100k", 999_999: "999k", 1_000_000: "1.0M", 12_345_678: "12.3M", 123_456_789: "123M",
	} {
		if got := formatCount(n); got != want {
			t.Errorf("count(%d) is %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m", 47 * time.Hour: "47h", 72 * time.Hour: "3d",
	} {
		if got := formatAge(d); got != want {
			t.Errorf("age(%s) is %q, want %q", d, got, want)
		}
	}
	if got := formatAgo("never"); got != "-" {
		t.Errorf("ago of no time is %q", got)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		bar  bool
		want string
	}{
		{false, "replayed 600 of 1000\nreplayed 1000 of 1000\n"},
		{true, "\r\x1b[Kreplayed [===============               ]  50%  500 of 1000  1000/s" +
			"\r\x1b[Kreplayed [==================            ]  60%  600 of 1000  600/s" +
			"\r\x1b[Kreplayed [==============================] 100%  1000 of 1000  500/s\r\x1b[K"},
	} {
		var out bytes.Buffer
		now := time.Unix(0, 0)
		p := &progress{out: &out, bar: tc.bar, verb: "replayed", total: 1000, now: func() time.Time { return now }, startedAt: now, shown: now}
		for _, step := range []struct {
			at   time.Duration
			done int
		}{{50, 100}, {500, 500}, {1000, 600}, {1050, 700}, {2000, 1000}} {
			now = time.Unix(0, 0).Add(step.at * time.Millisecond)
			p.update(step.done)
		}
		p.clearBar()
		if out.String() != tc.want {
			t.Errorf("bar %v printed %q, want %q", tc.bar, out.String(), tc.want)
		}
	}
}

func TestAdminURL(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"127.0.0.1:9090": "http://127.0.0.1:9090", ":9090": "http://127.0.0.1:9090", "0.0.0.0:1": "http://127.0.0.1:1",
		"[::]:1": "http://[::1]:1", "[::1]:1": "http://[::1]:1", "relay.internal:9090": "http://relay.internal:9090",
	} {
		if got := localURL("http", listen); got != want {
			t.Errorf("%s is reached at %s, want %s", listen, got, want)
		}
	}
}

func TestParseSince(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"2h": "2026-11-21T02:00:00Z", "90m": "2026-11-21T02:30:00Z", "2026-11-20T08:00:00+01:00": "2026-11-20T07:00:00Z",
		"-2h": "", "yesterday": "", "2026-11-20": "",
	} {
		got, err := parseSince(text, now)
		if (err == nil) != (want != "") || err == nil && got.UTC().Format(time.RFC3339) != want {
			t.Errorf("%q is %s, %v, want %q", text, got, err, want)
		}
	}
}
