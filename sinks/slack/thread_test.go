package slack

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/samples"
	"github.com/hubrelay/hubrelay/relay"
)

func TestThread(t *testing.T) {
	t.Parallel()
	w, url := newWorkspace(t)
	memory := newNotes()
	s := openApp(t, &Config{
		APIURL: url, Channels: []Route{{Topics: []string{"billing.*"}, Channel: "#billing"}},
	}, memory)
	send := func(d relay.Delivery) {
		t.Helper()
		if err := s.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	send(happened(1, "container.error", "c1", "", "no <space> left"))
	send(happened(2, "container.error", "c2", "", "other"))
	send(happened(4, "container.state.changed", "c1", "stopping", ""))
	send(happened(3, "container.updated", "c1", "", ""))               // late: a reply, and the first message stays
	send(happened(4, "container.state.changed", "c1", "stopping", "")) // a repeated delivery
	s = openApp(t, &Config{APIURL: url}, memory)                       // after a restart, or a reload
	send(happened(5, "container.state.changed", "c1", "running", ""))
	send(happened(6, "container.error", "c1", "", "again")) // a new thread, since that one ended
	want := []string{
		"Container state changed: running", "Something went wrong", "  Container state changed: stopping",
		"  Container's details",
		"  Container state changed: running", "Something went wrong",
	}
	got := w.shown("C0GENERAL")
	if len(got) != len(want) {
		t.Fatalf("shown:\n%s", strings.Join(got, "\n"))
	}
	first, _ := json.Marshal(w.messages["C0GENERAL"][0])
	for _, text := range []string{
		"running",
		"Began with: Something went wrong with a container as a whole `no \\u0026lt;space\\u0026gt; left`", "3 updates below", severityColor(good),
	} {
		if !strings.Contains(string(first), text) {
			t.Errorf("the first message lacks %s: %s", text, first)
		}
	}
	for i, one := range got {
		if strings.HasPrefix(want[i], "  ") != strings.HasPrefix(one, "  ") {
			t.Errorf("message %d is %q, want %q", i, one, want[i])
		}
	}
	one := openApp(t, &Config{
		APIURL: url, Channels: []Route{{Topics: []string{"billing.*"}, Channel: "#billing"}},
	}, memory)
	if err := one.Deliver(t.Context(), samples.Deliveries([]string{"billing.credit.error"})[0]); err != nil ||
		len(w.shown("C0BILLING")) != 1 {
		t.Errorf("%v: %s", err, w.shown("C0BILLING"))
	}
}

// TestFurtherCalls counts what Slack counts: each call but one for each delivery.
func TestFurtherCalls(t *testing.T) {
	t.Parallel()
	w, url := newWorkspace(t)
	counted := 0
	s := openCounted(t, &Config{APIURL: url}, newNotes(), func(n int) { counted += n })
	for n, c := range []struct {
		d       relay.Delivery
		further int
	}{
		{happened(1, "container.error", "c1", "", "a"), 0},
		{happened(2, "container.error", "c1", "", "b"), 1},
		{happened(2, "container.error", "c1", "", "b"), 0}, // a repeat without any effect
		{happened(1, "container.updated", "c1", "", ""), 0},
		{happened(3, "dns.zone.created", "", "", ""), 0},
		{happened(4, "container.error", "c1", "", "d"), 1}, // the first message was deleted
	} {
		w.mu.Lock()
		if n == 5 {
			w.messages["C0GENERAL"] = nil
		}
		before := len(w.calls)
		w.mu.Unlock()
		if err := s.Deliver(t.Context(), c.d); err != nil {
			t.Fatal(err)
		}
		got := counted
		counted = 0
		if got != c.further || len(w.calls)-before > got+1 {
			t.Errorf("delivery %d: %d further calls counted of %v, want %d", n, got, w.calls[before:], c.further)
		}
	}
}

// TestThreadAtOnce delivers for one container from many goroutines of two sinks: there is one thread.
func TestThreadAtOnce(t *testing.T) {
	t.Parallel()
	w, url := newWorkspace(t)
	memory := newNotes()
	sinks := []*Sink{openApp(t, &Config{APIURL: url}, memory), openApp(t, &Config{APIURL: url}, memory)}
	var wg sync.WaitGroup
	const n = 12
	for i := range n {
		wg.Go(func() {
			if err := sinks[i%2].Deliver(t.Context(),
				happened(i, "container.error", "c1", "", fmt.Sprint("no ", i))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	roots := 0
	for _, line := range w.shown("C0GENERAL") {
		if !strings.HasPrefix(line, "  ") {
			roots++
			if !strings.Contains(line, "no 11") {
				t.Errorf("the first message shows %s, which is not the latest", line)
			}
		}
	}
	if roots != 1 || len(w.shown("C0GENERAL")) != n {
		t.Errorf("%d threads:\n%s", roots, strings.Join(w.shown("C0GENERAL"), "\n"))
	}
}

// TestThreadMishaps has a first message that is deleted, and a limit between reply and update.
func TestThreadMishaps(t *testing.T) {
	t.Parallel()
	w, url := newWorkspace(t)
	s := openApp(t, &Config{APIURL: url}, newNotes())
	if err := s.Deliver(t.Context(), happened(1, "container.error", "c1", "", "a")); err != nil {
		t.Fatal(err)
	}
	w.answer = func(method string, r http.ResponseWriter) bool {
		if method == methodUpdate {
			r.Header().Set("Retry-After", "7")
			r.WriteHeader(http.StatusTooManyRequests)
		}
		return method == methodUpdate
	}
	d := happened(2, "container.error", "c1", "", "b")
	err := s.Deliver(t.Context(), d)
	if outcome, wait := relay.Classify(err); outcome != relay.OutcomeRetry || wait != 7*time.Second {
		t.Errorf("%v: %s after %s", err, outcome, wait)
	}
	w.mu.Lock()
	w.answer = nil
	w.mu.Unlock()
	if err := s.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if got := w.shown("C0GENERAL"); len(got) != 2 || !strings.Contains(got[0], "b") {
		t.Errorf("the reply was repeated, or the first message not brought up to date: %q", got)
	}
	w.mu.Lock()
	w.messages["C0GENERAL"] = w.messages["C0GENERAL"][1:] // delete the first message
	w.mu.Unlock()
	if err := s.Deliver(t.Context(), happened(3, "container.error", "c1", "", "c")); err != nil {
		t.Fatal(err)
	}
	if got := w.shown("C0GENERAL"); len(got) != 2 || strings.HasPrefix(got[1], "  ") {
		t.Errorf("no new thread: %q", got)
	}
}
