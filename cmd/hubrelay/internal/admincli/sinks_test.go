package admincli

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

func TestSinksTable(t *testing.T) {
	t.Parallel()
	const large = 123456789
	var rows [][]string
	for _, s := range []adminapi.Sink{
		{
			Name: "a-sink-of-twenty-characters", Type: "webhook", Configured: true, State: adminapi.SinkThrottled,
			Waiting: large, Retrying: large, Dead: large, InFlight: 1, Delivered: large,
			OldestAt: time.Now().Add(-25 * time.Hour), LastSuccessAt: time.Now().AddDate(-5, 0, 0),
			Topics: []string{"*.error"}, FailedAttempts: map[string]int64{"dns": 7, "tls": 123456},
		},
		{Name: "alerts", Type: "slack", Configured: true, State: adminapi.SinkActive, InFlight: 1, Delivered: 1},
	} {
		rows = append(rows, sinkRow(&s))
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
		"NAME", "STATE", "WAITING", "RETRYING", "DEAD", "OLDEST", "LAST SUCCESS", "DELIVERED",
		"FAILURES", "25h", "123k",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}

func TestShortError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"render the template: line 3: there is no field": "template: line 3: there is no field",
		"post to example.com: status 500":                "status 500",
		"status 400":                                     "status 400", "no\x1b[2J": "no\uFFFD[2J",
	} {
		if got := shortError(text); got != want {
			t.Errorf("shortError(%q) = %q, want %q", text, got, want)
		}
	}
}

// The last failure is shown while it may be relevant.
func TestLastSinkFailure(t *testing.T) {
	t.Parallel()
	at := func(ago time.Duration) time.Time { return time.Now().Add(-ago) }
	failed := adminapi.Sink{
		Name: "billing", Configured: true, LastError: "post to example.com: status 500", LastErrorAt: at(3 * time.Hour),
	}
	const want = "billing: the last attempt failed 3h ago: status 500"
	for _, c := range []struct {
		name string
		with func(*adminapi.Sink)
		want string
	}{
		{"no delivery", func(*adminapi.Sink) {}, want},
		{"earlier delivery", func(s *adminapi.Sink) { s.LastSuccessAt = at(4 * time.Hour) }, want},
		{"later delivery", func(s *adminapi.Sink) { s.LastSuccessAt = at(time.Hour) }, ""},
		{
			"later delivery and a scheduled retry",
			func(s *adminapi.Sink) { s.LastSuccessAt, s.Retrying = at(time.Hour), 1 }, want,
		},
		{"removed", func(s *adminapi.Sink) { s.Configured = false }, ""},
		{"disabled, with the error as the reason", func(s *adminapi.Sink) { s.State = adminapi.SinkDisabled }, ""},
		{"no failure", func(s *adminapi.Sink) { s.LastError, s.LastErrorAt = "", time.Time{} }, ""},
	} {
		s := failed
		c.with(&s)
		if got := lastSinkFailure(&s); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if got := term.TruncateToWidth(want, 20); got != "billing: the last a…" || term.TruncateToWidth(want, 0) != want {
		t.Errorf("TruncateToWidth(%q, 20) = %q", want, got)
	}
}

func TestSinkNotes(t *testing.T) {
	t.Parallel()
	s := adminapi.Sink{
		Name: "billing", Configured: true, State: adminapi.SinkDisabled, Reason: "status 410", Dropped: 50,
	}
	got := strings.Join(sinkNotes(&s), "\n")
	want := "billing: disabled: status 410; fix the destination, then 'hubrelay sinks resume' enables it\n" +
		"billing: 50 dropped so far because the backlog or Redis was full; fix the destination, raise backlog, " +
		"or give Redis more memory, then replay them with 'hubrelay sinks replay billing --since TIME'"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s = adminapi.Sink{
		Name: "billing", Configured: true, State: adminapi.SinkActive, FailingAccounts: []string{"acme", "other"},
	}
	want = "billing: the destination fails for 2 accounts (acme, other), whose deliveries are postponed"
	if got := strings.Join(sinkNotes(&s), "\n"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s = adminapi.Sink{
		Name: "billing", Configured: true, State: adminapi.SinkActive, Reason: "scheduled retries have reached backlog", Retrying: 3,
	}
	want = "billing: scheduled retries have reached backlog; 'hubrelay sinks retry billing' starts the retries now"
	if got := strings.Join(sinkNotes(&s), "\n"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s = adminapi.Sink{Name: "billing", Configured: true, State: adminapi.SinkActive}
	if notes := sinkNotes(&s); len(notes) != 0 {
		t.Errorf("active sink: got notes %q, want none", notes)
	}
}
