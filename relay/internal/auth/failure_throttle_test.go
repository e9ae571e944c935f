package auth

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func TestFailureThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFailureThrottle()
		guesser, other := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1")
		for range failureBurst {
			if wait := f.Fail(guesser); wait != 0 {
				t.Fatalf("a failure within the burst has to wait %s", wait)
			}
		}
		if wait := f.Fail(netip.MustParseAddr("2001:db8::2")); wait <= 0 || wait > time.Second {
			t.Errorf("got a wait of %s for the same /64, want up to a second", wait)
		}
		if wait := f.Fail(other); wait != 0 {
			t.Errorf("got a wait of %s for another address, want none", wait)
		}
		time.Sleep(3 * time.Second)
		allowed := 0
		for range 10 {
			if f.Fail(guesser) == 0 {
				allowed++
			}
		}
		if allowed != 3 {
			t.Errorf("got %d failures after three seconds, want 3", allowed)
		}
	})
}
