package pipeline

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// limitedSink reports how many attempts it can make at once.
type limitedSink struct {
	fakeSink

	report func(n int)
}

func (s *limitedSink) ReportConcurrency(report func(n int)) {
	s.report = report
	report(1)
}

// A node on which the sink can make no attempts leaves its deliveries to others, until it can make attempts again.
func TestPipeline_SinkIsUnavailable(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &limitedSink{fakeSink: fakeSink{answer: answers(nil)}}
	p := e.pipeline(sink, func(o *Options) { o.unavailableAfter = 50 * time.Millisecond })
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	stops, err := p.WaitEnabled(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	runs, ended := make(chan context.Context), make(chan error, 1)
	go func() {
		ended <- p.WhileAvailable(ctx, func(ctx context.Context) error {
			runs <- ctx
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	run := <-runs

	sink.report(0)
	if err := handleDelivery(t.Context(), p, delivery("waits")); !errors.Is(err, ErrDisabled) {
		t.Errorf("Handle = %v, want ErrDisabled", err)
	}
	<-stops
	<-run.Done()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.WaitEnabled(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WaitEnabled = %v while the sink can make no attempts", err)
	}
	if state := p.State(); state != store.StateActive {
		t.Errorf("the state is %q, want active, because other nodes deliver", state)
	}

	sink.report(1)
	<-runs
	if _, err := p.WaitEnabled(t.Context()); err != nil {
		t.Error(err)
	}
	if err := handleDelivery(t.Context(), p, delivery("delivered")); err != nil || sink.attempts("delivered") != 1 {
		t.Errorf("Handle = %v after %d attempts, want one", err, sink.attempts("delivered"))
	}
	end()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("WhileAvailable = %v, want the error of its context", err)
	}
}

// Deliveries wait before their attempt while the sink can make no more attempts, so their time limit is not used up.
func TestPipeline_SinkLimitsConcurrency(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	started, finish := make(chan struct{}, 4), make(chan struct{})
	sink := &limitedSink{fakeSink: fakeSink{answer: func(context.Context, relay.Delivery) error {
		started <- struct{}{}
		<-finish
		return nil
	}}}
	p := e.pipeline(sink, func(o *Options) { o.Concurrency, o.Timeout = 3, time.Hour })
	errs := make(chan error, 4)
	for i := range 4 {
		go func() { errs <- handleDelivery(t.Context(), p, delivery(strconv.Itoa(i))) }()
	}
	waitFor := func(attempts, waiting int) {
		t.Helper()
		for range attempts {
			<-started
		}
		testkit.WaitForValue(t, "other deliveries wait", waiting, p.admission.Waiting)
		if got := int(sink.now.Load()); got != 4-waiting {
			t.Errorf("%d attempts are running, want %d", got, 4-waiting)
		}
	}
	waitFor(1, 3)
	sink.report(2)
	waitFor(1, 2)
	sink.report(8) // more than the concurrency of the sink
	waitFor(1, 1)
	close(finish)
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
