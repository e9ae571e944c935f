package netdeadline_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/netdeadline"
)

// A response that arrives with the deadline is read, and a later one is not.
func TestInterruptAfter_Deadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer func() { _, _ = near.Close(), far.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		stop := netdeadline.InterruptAfter(ctx, near)
		time.Sleep(time.Second)
		synctest.Wait()
		if stop() {
			t.Error("stop reports that the context has not ended")
		}
		if _, err := near.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a write after the deadline: got error %v", err)
		}
		go func() { _, _ = far.Write([]byte("late")) }()
		if text, err := io.ReadAll(io.LimitReader(near, 4)); string(text) != "late" || err != nil {
			t.Errorf("a read after the deadline: got %q, %v", text, err)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a read long after the deadline: got error %v", err)
		}
	})
}

func TestInterruptAfter_Cancellation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer func() { _ = far.Close() }()
		ctx, cancel := context.WithCancel(t.Context())
		netdeadline.InterruptAfter(ctx, near)
		cancel()
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("got error %v", err)
		}
	})
}

func TestInterruptAfter_Stop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer func() { _, _ = near.Close(), far.Close() }()
		ctx, cancel := context.WithCancel(t.Context())
		if !netdeadline.InterruptAfter(ctx, near)() {
			t.Error("stop reports that the context has ended")
		}
		cancel()
		synctest.Wait()
		go func() { _, _ = far.Write([]byte("x")) }()
		if _, err := near.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
	})
}

func TestCause(t *testing.T) {
	t.Parallel()
	broken, reason := errors.New("broken"), errors.New("no response within 1s")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, reason)
		defer cancel()
		for _, err := range []error{broken, os.ErrDeadlineExceeded} {
			if got := netdeadline.Cause(ctx, err); !errors.Is(got, err) {
				t.Errorf("before the deadline: got %v, want %v", got, err)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := netdeadline.Cause(ctx, broken); !errors.Is(got, reason) {
			t.Errorf("after the deadline: got %v, want %v", got, reason)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		late := lateContext{ctx, time.Now()}
		if got := netdeadline.Cause(late, broken); !errors.Is(got, broken) {
			t.Errorf("with a late timer: got %v, want %v", got, broken)
		}
		time.AfterFunc(time.Millisecond, func() { cancel(reason) })
		if got := netdeadline.Cause(late, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}); !errors.Is(got, reason) {
			t.Errorf("with a late timer: got %v, want %v", got, reason)
		}
	})
}

// lateContext is a context whose timer is late.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (l lateContext) Deadline() (time.Time, bool) { return l.deadline, true }
