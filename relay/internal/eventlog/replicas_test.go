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
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

func TestMinReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.StartPair(t, redistest.FreePort(t))
	b := open(t, primary, redisconn.Options{MinReplicas: 1})
	lone := AppendRequest{Hub: "h", Notifications: conntest.Notifications("h", 1, 1)}
	batch := AppendRequest{Hub: "h", Notifications: conntest.Notifications("h", 2, 3)}
	keyed := AppendRequest{Hub: "h", Key: "k", Digest: "d", Notifications: conntest.Notifications("h", 4, 5)}
	store := func() map[string]error {
		var mu sync.Mutex
		var all sync.WaitGroup
		errs := make(map[string]error)
		for name, a := range map[string]AppendRequest{"lone": lone, "batch": batch, "keyed": keyed} {
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
	for range 2 { // a repeat stores nothing, and still its replicas are too few
		for name, err := range store() {
			if !errors.Is(err, redisconn.ErrTooFewReplicas) || !errors.Is(err, redisconn.ErrUnavailable) {
				t.Errorf("%s with a replica that hangs: %v", name, err)
			}
		}
	}
	if n := len(readLog(t, b, 0)); n != 8 { // one and two twice, two once
		t.Errorf("%d are stored, want 8", n)
	}
	replica.Signal(syscall.SIGCONT)
	straight := primary.Client()
	testkit.WaitFor(t, "the replica to have what it missed", func() bool {
		p := straight.Pipeline()
		p.Set(t.Context(), "probe", 1, 0)
		have := p.Do(t.Context(), "WAIT", 1, 1000)
		_, err := p.Exec(t.Context())
		n, _ := have.Int()
		return err == nil && n == 1
	})
	want := 8
	testkit.WaitFor(t, "a replica that answers to be enough", func() bool {
		want += 3 // one and two: the others know repeats
		return errors.Join(slices.Collect(maps.Values(store()))...) == nil
	})
	if n := len(readLog(t, b, 0)); n != want {
		t.Errorf("%d are stored, want %d", n, want)
	}
}

// Of what is written together each caller hears of its own write, and all wait for the replica.
func TestMinReplicasOfSharedWrites(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.StartPair(t, redistest.FreePort(t))
	b := open(t, primary, redisconn.Options{MinReplicas: 1, Partitions: 3})
	write := func() (short, stored int) {
		errs := make(chan error)
		for i := range 40 {
			go func() {
				hub := string(rune('a' + i))
				_, err := b.Append(t.Context(), AppendRequest{Hub: hub, Notifications: conntest.Notifications(hub, i, i)})
				errs <- err
			}()
		}
		for range 40 {
			switch err := <-errs; {
			case err == nil:
				stored++
			case errors.Is(err, redisconn.ErrTooFewReplicas):
				short++
			default:
				t.Error(err)
			}
		}
		return short, stored
	}
	want := 40
	testkit.WaitFor(t, "a replica that answers to be enough", func() bool {
		want += 40
		short, stored := write()
		return short == 0 && stored == 40
	})
	replica.Signal(syscall.SIGSTOP)
	defer replica.Signal(syscall.SIGCONT)
	if short, stored := write(); short != 40 || stored != 0 {
		t.Errorf("without a replica %d of 40 were accepted", stored)
	}
	n := 0
	for p := range 3 {
		n += len(readLog(t, b, p))
	}
	if n != want {
		t.Errorf("%d are stored, want %d", n, want)
	}
}
