package filewatch

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// A file system that does not respond must not stop the reads of other files, and each file has one goroutine that waits.
func TestCallWithin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		respond := make(chan struct{})
		read := func() (string, error) {
			calls.Add(1)
			<-respond
			return "x", nil
		}
		for range 3 {
			if _, err := callWithin("hangs", read); !errors.Is(err, errHanging) {
				t.Errorf("got %v, want %v", err, errHanging)
			}
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("got %d reads, want 1", n)
		}
		if text, err := callWithin("another", func() (string, error) { return "y", nil }); text != "y" || err != nil {
			t.Errorf("another file: got %q, %v", text, err)
		}
		close(respond)
		synctest.Wait()
		if text, err := callWithin("hangs", read); text != "x" || err != nil {
			t.Errorf("after the file system responds: got %q, %v", text, err)
		}
	})
}
