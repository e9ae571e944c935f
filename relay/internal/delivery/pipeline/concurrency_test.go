package pipeline

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
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
		go func() { errs <- p.Handle(t.Context(), delivery(strconv.Itoa(i))) }()
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
