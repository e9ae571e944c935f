package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind, mode, config string
		change             func(*Options)
		want               []relay.FieldError
		err                string
	}{
		"good": {kind: KindSink, mode: "sdk", config: `{"report":%q,"level":7}`},
		"unknown key": {kind: KindSink, mode: "sdk", config: `{"reprot":"x"}`, want: []relay.FieldError{
			{Field: "reprot", Problem: "is an unknown key; did you mean report?"},
		}},
		"wrong type": {kind: KindSink, mode: "sdk", config: `{"level":"high"}`, want: []relay.FieldError{
			{Field: "level", Problem: "must be a number, not a string"},
		}},
		"own mistakes": {kind: KindSink, mode: "sdk", config: `{"level":-2}`, want: []relay.FieldError{
			{Field: "level", Problem: "is -2: choose 0 or more"}, {Problem: "levels are bad"},
		}},
		"panic": {
			kind: KindSink, mode: "sdk", config: `{"level":-3}`,
			err: "the plugin's validation of its configuration panicked (string) at sink_main_test.go:",
		},
		"driver": {kind: KindDriver, mode: "driver", config: `{"reprot":"x"}`, want: []relay.FieldError{
			{Field: "reprot", Problem: "is an unknown key; did you mean report?"},
		}},
		"good driver":  {kind: KindDriver, mode: "driver", config: `{}`},
		"no answer":    {kind: KindSink, mode: "strange", err: ErrUnsupported.Error()},
		"odd driver":   {kind: KindDriver, mode: "odd", err: ErrUnsupported.Error()},
		"another kind": {kind: KindSink, mode: "driver", err: "was started as a sink"},
		"exit":         {kind: KindSink, mode: "exit", err: "exited with status 3 before it was ready: no database"},
		"missing": {
			kind: KindSink, change: func(o *Options) { o.Command = []string{"/no/such/program"} },
			err: "does not exist",
		},
		"another pin": {
			kind: KindSink, mode: "sdk", change: func(o *Options) { o.SHA256 = strings.Repeat("ab", 32) },
			err: "sha256 pins abab",
		},
		"silent": {
			kind: KindSink, mode: "silent",
			change: func(o *Options) { o.StartupTimeout = 300 * time.Millisecond },
			err:    "handshake within 300ms (startup_timeout)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, o := newWatch(t, c.mode, c.change)
			o.Config = json.RawMessage(strings.Replace(c.config, "%q", strconv.Quote(w.report), 1))
			got, err := Validate(t.Context(), c.kind, o)
			if fmt.Sprint(got) != fmt.Sprint(c.want) || (err == nil) != (c.err == "") || err != nil &&
				!strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v, %v", got, err)
			}
			if _, err := os.Stat(w.report); err == nil {
				t.Error("it has done something")
			}
		})
	}
}

// A question ends with its context, whatever the plugin does.
func TestValidate_EndsWithContext(t *testing.T) {
	t.Parallel()
	_, o := newWatch(t, "silent", nil)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Validate(ctx, KindSink, o); err == nil || !strings.Contains(err.Error(), "did not respond within") {
		t.Errorf("got %v", err)
	}
}

// untilCleared is a context that ends when the socket directory of a plugin is removed.
type untilCleared struct {
	context.Context
	root string
}

func (c untilCleared) Err() error {
	all, _ := filepath.Glob(filepath.Join(c.root, "hubrelay-plugins-*"))
	left, _ := filepath.Glob(filepath.Join(c.root, "hubrelay-plugins-*", "*"))
	if len(all) > 0 && len(left) == 0 {
		return context.DeadlineExceeded
	}
	return c.Context.Err()
}

// An answer in time counts even if the time ends during the cleanup.
func TestQuery_AnswerCountsIfContextEndsDuringCleanup(t *testing.T) {
	t.Parallel()
	_, o := newWatch(t, "exit", nil)
	ctx := untilCleared{t.Context(), o.SocketRoot}
	if _, err := Validate(ctx, KindSink, o); err == nil ||
		!strings.Contains(err.Error(), "exited with status 3 before it was ready: no database") {
		t.Errorf("one that exits: %v", err)
	}
	_, o = newWatch(t, "driver", nil)
	if kind, err := KindOf(untilCleared{t.Context(), o.SocketRoot}, o); err != nil || kind != KindDriver {
		t.Errorf("a driver is a %q, %v", kind, err)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	_, o := newWatch(t, "sdk", nil)
	got, err := Explain(t.Context(), o, one("7", 2, "ok"))
	want := relay.Preview{
		Method: "write", Target: "7", Headers: []relay.Header{{Name: "attempt", Value: "2"}},
		Payload:   []byte(`{"topic":"ok"}`),
		Followups: []relay.Preview{{Method: "sync", Target: "7"}},
	}
	if err != nil || fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("got %q (%v), not %q", got, err, want)
	}
	if _, err := Explain(t.Context(), o, one("8", 1, "reject")); !IsRejected(err) ||
		err.Error() != "the plugin cannot send the delivery: never this" {
		t.Errorf("what it could not send: %v", err)
	}
	o.Config = json.RawMessage(`{"reprot":1}`)
	if _, err := Explain(t.Context(), o, one("9", 1, "ok")); !IsRejected(err) ||
		!strings.Contains(err.Error(), "config: reprot is an unknown key") {
		t.Errorf("a bad configuration: %v", err)
	}
	_, o = newWatch(t, "strange", nil)
	if _, err := Explain(t.Context(), o, one("9", 1, "ok")); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a plugin that cannot: %v", err)
	}
}

// The reason of a rejection is visible at once, and stays visible during restarts.
func TestHost_StatusShowsRejection(t *testing.T) {
	t.Parallel()
	r := newRig(t, "sdk", func(o *Options) { o.Config = json.RawMessage(`{"reprot":1}`) })
	r.Start()
	r.until("the refusal", func() bool { return IsRejected(r.Status().Reason) })
	states := map[State]bool{}
	r.until("three more starts", func() bool {
		s := r.Status()
		if !IsRejected(s.Reason) {
			t.Fatalf("meanwhile it is %+v", s)
		}
		states[s.State] = true
		return r.count(EventNotStarted) >= 3 && states[StateStarting] && states[StateFailed]
	})
}
