package host

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	sinkv1 "github.com/hubrelay/hubrelay/plugins/proto/sink/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// A delivery that the plugin was not given does not use up an attempt: while the plugin accepts no more, when it dies, and after
// that. One that it was given does.
func TestDeliveryStream_UnsentDoesNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStream(nil, func() {}, &Options{reportConcurrency: func(int) {}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.deliverAttempt(ctx, one("a", 1, "ok")); !relay.IsPostponed(err) {
			t.Errorf("without a credit: got error %v", err)
		}
		unsent, sent := make(chan error, 1), make(chan error, 1)
		go func() { unsent <- s.deliverAttempt(t.Context(), one("b", 1, "ok")) }()
		go func() { sent <- s.deliverAttempt(t.Context(), one("c", 1, "ok")) }()
		synctest.Wait()
		s.pending[attemptKey{"c", 1}].sent = true
		s.failAll(errors.New("the plugin exited"))
		if err := <-unsent; !relay.IsPostponed(err) {
			t.Errorf("not sent: got error %v", err)
		}
		if err := <-sent; err == nil || relay.IsPostponed(err) {
			t.Errorf("sent: got error %v", err)
		}
		if err := s.deliverAttempt(t.Context(), one("d", 1, "ok")); !relay.IsPostponed(err) {
			t.Errorf("after the exit: got error %v", err)
		}
	})
}

// The stream reports how many attempts the plugin can make at once. An attempt without a response occupies the plugin, also after
// its time limit.
func TestDeliveryStream_ReportsConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reported []int
		last := -1
		s := newStream(nil, func() {}, &Options{Observe: func(Event) {}, reportConcurrency: func(n int) {
			if n != last {
				reported, last = append(reported, n), n
			}
		}})
		check := func(when string, want ...int) {
			t.Helper()
			s.mu.Lock()
			defer s.mu.Unlock()
			if !slices.Equal(reported, want) {
				t.Errorf("%s: got %v, want %v", when, reported, want)
			}
			reported = nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		attempts := make(chan error, 3)
		start := func(id string) {
			go func() { attempts <- s.deliverAttempt(ctx, one(id, 1, "ok")) }()
			synctest.Wait()
		}
		ack := func(id string, credits uint32) {
			r := &sinkv1.DeliverResponse{Credits: credits}
			if id != "" {
				r.Acks = []*sinkv1.Ack{{DeliveryId: id, Attempt: 1}}
			}
			s.applyAcks(r)
			synctest.Wait()
		}
		ack("", 2)
		check("first credits", 2)
		start("a")
		time.Sleep(time.Second)
		start("b")
		request, _ := s.next()
		if len(request.GetDeliveries()) != 2 || request.GetDeliveries()[1].GetTimeoutMs() != 3000 {
			t.Errorf("got request %v, want two deliveries with the remaining time", request)
		}
		check("both sent")
		ack("a", 1)
		check("ack with a credit")
		time.Sleep(4 * time.Second)
		synctest.Wait()
		check("timeout", 1)
		ack("b", 1)
		check("late ack", 2)
		start("c")
		s.next()
		s.failAll(errors.New("the plugin exited"))
		check("exit", 0)
		ack("", 5)
		check("credits of an ended stream")
	})
}

// A few attempts without a response do not end a plugin that responds to others. They do when they occupy half of it.
func TestDeliveryStream_HangError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStream(nil, func() {}, &Options{
			HangTimeout: 10 * time.Second, reportConcurrency: func(int) {},
		})
		s.credits = 4
		start := func(id string) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			sent := make(chan error, 1)
			go func() { sent <- s.deliverAttempt(ctx, one(id, 1, "ok")) }()
			synctest.Wait()
			s.next()
			if err := <-sent; !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("got error %v, want a timeout", err)
			}
		}
		check := func(wantHung bool) {
			t.Helper()
			if err := s.hangError(s.now()); (err != nil) != wantHung {
				t.Errorf("got error %v, want one: %t", err, wantHung)
			}
		}
		start("a")
		time.Sleep(11 * time.Second)
		check(true) // it has responded to nothing
		s.lastAck = s.now()
		check(false)
		start("b")
		check(false)
		time.Sleep(11 * time.Second)
		s.lastAck = s.now()
		check(true)
		s.credits++ // of 5
		check(false)
		clear(s.pending)
		s.credits, s.lastAck = 0, s.now()
		check(false)
		time.Sleep(11 * time.Second)
		check(true) // no credit
	})
}

// responses is a stream of a plugin that sends the same response a number of times.
type responses struct {
	deliverStream
	response *sinkv1.DeliverResponse
	left     int
}

func (*responses) Context() context.Context { return context.Background() }

func (r *responses) Recv() (*sinkv1.DeliverResponse, error) {
	if r.left == 0 {
		return nil, io.EOF
	}
	r.left--
	return r.response, nil
}

// The host reads responses without content slowly, and others as fast as it can.
func TestDeliveryStream_LimitsEmptyResponses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		response *sinkv1.DeliverResponse
		credits  int // before
		want     time.Duration
	}{
		"empty":        {&sinkv1.DeliverResponse{}, 0, 4 * time.Second},
		"vain credits": {&sinkv1.DeliverResponse{Credits: 1}, wire.MaxCredits, 4 * time.Second},
		"credits":      {&sinkv1.DeliverResponse{Credits: 1}, 0, 0},
		"acks":         {&sinkv1.DeliverResponse{Acks: []*sinkv1.Ack{{}}}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStream(&responses{response: test.response, left: 5 * maxEmptyResponses}, func() {},
					&Options{Observe: func(Event) {}, reportConcurrency: func(int) {}})
				s.credits = test.credits
				started := time.Now()
				if err := s.receive(); !errors.Is(err, io.EOF) {
					t.Errorf("got error %v, want the end of the stream", err)
				}
				if took := time.Since(started).Round(100 * time.Millisecond); took != test.want {
					t.Errorf("took %s, want %s", took, test.want)
				}
			})
		})
	}
}
