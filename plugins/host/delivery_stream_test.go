package host

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// A delivery that the plugin was not given does not use up an attempt: while the plugin accepts no more, when it dies, and after
// that. One that it was given does.
func TestDeliveryStream_UnsentDoesNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStream(nil, func() {}, &Options{})
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
