package backbone

import (
	"context"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
)

func TestSentinelPromotesTheReplica(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	port := redistest.FreePort(t)
	primary, replica := redistest.StartPair(t, port)
	url := redistest.StartSentinels(t, port)
	safe := openURL(t, Options{URL: url, Partitions: 2, MinReplicas: 1})
	plain := openURL(t, Options{URL: url, Partitions: 2})
	tr, stop := startTraffic(ctx, t, safe, plain)
	tr.goesOn("the primary", 30)
	primary.Kill()
	replica.AwaitMaster()
	tr.through(plain) // the new primary has no replica
	tr.goesOn("the new primary", 30)
	stop()
	tr.check(plain)
}
