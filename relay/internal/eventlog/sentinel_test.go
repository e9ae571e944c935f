package eventlog

import (
	"context"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func TestTail_ContinuesAfterSentinelFailover(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	port := redistest.FreePort(t)
	primary, replica := redistest.StartPair(t, port)
	url := redistest.StartSentinels(t, port)
	safe := openOptions(t, redisconn.Options{URL: url, Partitions: 2, MinReplicas: 1})
	plain := openOptions(t, redisconn.Options{URL: url, Partitions: 2})
	tr, stop := startTraffic(ctx, t, safe, plain)
	tr.awaitMore("the primary", 30)
	tr.lose(plain, primary, replica, 0, 1)
	primary.Kill()
	replica.Signal(syscall.SIGCONT)
	replica.AwaitMaster()
	tr.switchTo(plain) // the new primary has no replica
	tr.awaitMore("the new primary", 30)
	stop()
	tr.check(plain)
	for p, r := range tr.tails {
		if _, gaps := r.count(); gaps == 0 {
			t.Errorf("partition %d: got no gap after losing an entry", p)
		}
	}
}
