package eventlog

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func TestAppend_WaitsForReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.StartPair(t, redistest.FreePort(t))
	b := open(t, primary, redisconn.Options{MinReplicas: 1})
	single := AppendRequest{Hub: "h", Notifications: notifications("h", 1, 1)}
	batch := AppendRequest{Hub: "h", Notifications: notifications("h", 2, 3)}
	keyed := AppendRequest{Hub: "h", Client: "c", Key: "k", Digest: "d", Notifications: notifications("h", 4, 5)}
	store := func() map[string]error {
		var mu sync.Mutex
		var all sync.WaitGroup
		errs := make(map[string]error)
		for name, a := range map[string]AppendRequest{"single": single, "batch": batch, "keyed": keyed} {
			all.Go(func() {
				_, err := b.Append(t.Context(), a)
				mu.Lock()
				defer mu.Unlock()
				errs[name] = err
			})
		}
		all.Wait()
		return errs
	}
	replica.Signal(syscall.SIGSTOP)
	for range 2 { // the repeat with a key stores nothing, but waits again
		for name, err := range store() {
			if !errors.Is(err, redisconn.ErrTooFewReplicas) || !errors.Is(err, redisconn.ErrUnavailable) {
				t.Errorf("%s with a stopped replica: got %v, want ErrTooFewReplicas", name, err)
			}
		}
	}
	if n := len(readLog(t, b, 0)); n != 8 { // single and batch are stored twice
		t.Errorf("got %d entries, want 8", n)
	}
	replica.Signal(syscall.SIGCONT)
	client := primary.Client()
	testkit.WaitFor(t, "the replica to be up to date", func() bool {
		p := client.Pipeline()
		p.Set(t.Context(), "probe", 1, 0)
		acked := p.Do(t.Context(), "WAIT", 1, 1000)
		_, err := p.Exec(t.Context())
		n, _ := acked.Int()
		return err == nil && n == 1
	})
	want := 8
	testkit.WaitFor(t, "appends to succeed", func() bool {
		want += 3 // single and batch; the repeat with a key stores nothing
		return errors.Join(slices.Collect(maps.Values(store()))...) == nil
	})
	if n := len(readLog(t, b, 0)); n != want {
		t.Errorf("got %d entries, want %d", n, want)
	}
}

// A shared write returns each caller the result for its notification.
func TestAppend_SharedWritesWaitForReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.StartPair(t, redistest.FreePort(t))
	b := open(t, primary, redisconn.Options{MinReplicas: 1, Partitions: 3})
	write := func() (tooFew, stored int) {
		errs := make(chan error)
		for i := range 40 {
			go func() {
				hub := string(rune('a' + i))
				list := notifications(hub, i, i)
				_, err := b.Append(t.Context(), AppendRequest{Hub: hub, Notifications: list})
				errs <- err
			}()
		}
		for range 40 {
			switch err := <-errs; {
			case err == nil:
				stored++
			case errors.Is(err, redisconn.ErrTooFewReplicas):
				tooFew++
			default:
				t.Error(err)
			}
		}
		return tooFew, stored
	}
	want := 40
	testkit.WaitFor(t, "appends to succeed", func() bool {
		want += 40
		tooFew, stored := write()
		return tooFew == 0 && stored == 40
	})
	replica.Signal(syscall.SIGSTOP)
	defer replica.Signal(syscall.SIGCONT)
	if tooFew, stored := write(); tooFew != 40 || stored != 0 {
		t.Errorf("with a stopped replica: got %d of 40 accepted and %d errors, want 40 errors", stored, tooFew)
	}
	n := 0
	for p := range 3 {
		n += len(readLog(t, b, p))
	}
	if n != want {
		t.Errorf("got %d entries, want %d", n, want)
	}
}
