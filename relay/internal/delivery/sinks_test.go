package delivery

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// keyedSink has a rate key and does nothing.
type keyedSink string

func (keyedSink) Deliver(context.Context, relay.Delivery) error { return nil }
func (keyedSink) Close() error                                  { return nil }
func (k keyedSink) RateKey() string                             { return string(k) }

func TestWarnRateConflicts(t *testing.T) {
	t.Parallel()
	named := func(name, key string, count int) *openSink {
		return &openSink{
			name: name, impl: keyedSink(key), cfg: config.Sink{Rate: relay.Rate{Count: count, Per: time.Minute}},
		}
	}
	for _, c := range []struct {
		name  string
		sinks []*openSink
		warns bool
	}{
		{"one rate", []*openSink{named("a", "x", 5), named("b", "x", 5)}, false},
		{"two rates", []*openSink{named("a", "x", 5), named("b", "y", 6), named("c", "x", 6)}, true},
		{"no rate", []*openSink{named("a", "x", 5), named("b", "x", 0)}, false},
	} {
		var out bytes.Buffer
		warnRateConflicts(slog.New(slog.NewTextHandler(&out, nil)), c.sinks, nil)
		if got := strings.Contains(out.String(), "[a c]"); got != c.warns || !c.warns && out.Len() > 0 {
			t.Errorf("%s: %s", c.name, out.String())
		}
		out.Reset()
		warnRateConflicts(slog.New(slog.NewTextHandler(&out, nil)), c.sinks, c.sinks)
		if out.Len() > 0 {
			t.Errorf("%s: logged again: %s", c.name, out.String())
		}
	}
}
