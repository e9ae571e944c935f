package forward

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

// Slow responses to requests of many addresses fill all places, but another address gets in.
func TestPendingRequests_SharePlacesByAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPendingRequests(time.Minute)
		addrs := maxPending / maxPendingPerAddress
		respond, errs := make(chan struct{}), make(chan error, maxPending)
		slow := func(ctx context.Context) (*auth.Key, error) {
			select {
			case <-respond:
				return nil, errRefused
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		for i := range addrs {
			for n := range maxPendingPerAddress {
				go func() {
					addr := netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
					_, err := p.shareRequest(t.Context(), fmt.Sprint(i, " ", n), addr, slow)
					errs <- err
				}()
			}
			synctest.Wait()
		}
		granted := make(chan error, 1)
		go func() {
			_, err := p.shareRequest(t.Context(), "good", testAddr, func(context.Context) (*auth.Key, error) {
				return &auth.Key{}, nil
			})
			granted <- err
		}()
		synctest.Wait()
		if len(errs) != 1 || !errors.Is(<-errs, errTooMany) {
			t.Error("no request of another address gave way")
		}
		// Each address that waited before gets one place first.
		for range addrs {
			respond <- struct{}{}
			synctest.Wait()
		}
		select {
		case err := <-granted:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Errorf("another address still waits after %d responses", addrs)
		}

		time.Sleep(time.Minute)
		synctest.Wait()
		timeouts := 0
		for len(errs) > 0 {
			if errors.Is(<-errs, errTimeout) {
				timeouts++
			}
		}
		if want := maxPending - 1 - addrs; timeouts != want {
			t.Errorf("%d requests reached the time limit, want %d", timeouts, want)
		}
		if p.running != 0 || len(p.waiting) != 0 || len(p.byKey) != 0 || len(p.byAddress) != 0 {
			t.Errorf("after all requests: %d running, %d waiting, %d shared, %d addresses", p.running, len(p.waiting),
				len(p.byKey), len(p.byAddress))
		}
	})
}

// Three addresses with slow responses do not make others wait.
func TestPendingRequests_LimitRunningPerAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPendingRequests(time.Minute)
		slow := func(ctx context.Context) (*auth.Key, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		for i := range maxRunning/maxRunningPerAddress - 1 {
			for n := range maxPendingPerAddress {
				addr := netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
				go func() { _, _ = p.shareRequest(t.Context(), fmt.Sprint(i, " ", n), addr, slow) }()
			}
		}
		synctest.Wait()
		started := time.Now()
		_, err := p.shareRequest(t.Context(), "good", testAddr, func(context.Context) (*auth.Key, error) { return &auth.Key{}, nil })
		if waited := time.Since(started); err != nil || waited > 0 {
			t.Errorf("got %v after %s, want a key at once", err, waited)
		}
		time.Sleep(2 * time.Minute) // running and waiting requests reach their timeout
		synctest.Wait()
		if p.running != 0 || len(p.waiting) != 0 || len(p.byAddress) != 0 {
			t.Errorf("%d run, %d wait, %d addresses", p.running, len(p.waiting), len(p.byAddress))
		}
	})
}
