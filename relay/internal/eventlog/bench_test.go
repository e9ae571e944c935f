package eventlog

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func largeNotification(i int) relay.Notification {
	return relay.Notification{
		ID: fmt.Sprintf("%024x", i), Topic: "container.instance.state.changed",
		Hub: "5f0c8a7e9d3b2a1c4e6f8a90", Account: "5f0c8a7e9d3b2a1c4e6f8a91",
		Data: []byte(`{"topic":"container.instance.state.changed","object":{"id":"5f0c8a7e9d3b2a1c4e6f8a92"},"x":"` +
			strings.Repeat("d", 355) + `"}`),
	}
}

func openBench(b *testing.B) *testLog {
	return open(b, redistest.Start(b, "--appendfsync", "everysec"), redisconn.Options{})
}

func reportRate(b *testing.B, n int64) { b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "entries/s") }

func BenchmarkAppendSingle(b *testing.B) {
	for _, parallel := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("callers=%d", parallel), func(b *testing.B) {
			bb := openBench(b)
			runParallel(b, parallel, func(ctx context.Context, i int) error {
				n := largeNotification(i)
				_, err := bb.Append(ctx, AppendRequest{Hub: n.Hub, Notifications: []relay.Notification{n}})
				return err
			})
			reportRate(b, int64(b.N))
		})
	}
}

func runParallel(b *testing.B, parallel int, do func(context.Context, int) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range parallel {
		wg.Go(func() {
			for {
				i := int(next.Add(1))
				if i > b.N {
					return
				}
				if err := do(b.Context(), i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
}

func newBatch(i, n int) []relay.Notification {
	ns := make([]relay.Notification, n)
	for j := range ns {
		ns[j] = largeNotification(i*n + j)
	}
	return ns
}

func BenchmarkAppendBatch(b *testing.B) {
	for _, parallel := range []int{1, 4} {
		b.Run(fmt.Sprintf("tx/callers=%d", parallel), func(b *testing.B) {
			bb := openBench(b)
			ns := newBatch(1, 100)
			runParallel(b, parallel, func(ctx context.Context, i int) error {
				_, err := bb.Append(ctx, AppendRequest{Hub: ns[0].Hub, Notifications: ns})
				return err
			})
			reportRate(b, int64(b.N)*100)
		})
		b.Run(fmt.Sprintf("script/callers=%d", parallel), func(b *testing.B) {
			bb := openBench(b)
			ns := newBatch(1, 100)
			runParallel(b, parallel, func(ctx context.Context, i int) error {
				_, err := bb.Append(ctx, AppendRequest{Hub: ns[0].Hub, Key: fmt.Sprint(i), Notifications: ns})
				return err
			})
			reportRate(b, int64(b.N)*100)
		})
		b.Run(fmt.Sprintf("floor-pipelined/callers=%d", parallel), func(b *testing.B) {
			bb := openBench(b)
			ns := newBatch(1, 100)
			runParallel(b, parallel, func(ctx context.Context, i int) error {
				_, err := bb.Commands().Pipelined(ctx, func(p redis.Pipeliner) error {
					for i := range ns {
						p.Do(ctx, addArgs(Key(bb.Keys(), 0), &ns[i], "")...)
					}
					return nil
				})
				return err
			})
			reportRate(b, int64(b.N)*100)
		})
	}
}

const benchEntries = 100_000

// fillLog appends n notifications.
func fillLog(b *testing.B, bb *testLog, n int) {
	for i := range n / 100 {
		ns := newBatch(i, 100)
		if _, err := bb.Append(b.Context(), AppendRequest{Hub: ns[0].Hub, Notifications: ns}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTail(b *testing.B) {
	bb := openBench(b)
	fillLog(b, bb, benchEntries)
	b.ResetTimer()
	for range b.N {
		ctx, cancel := context.WithCancel(b.Context())
		seen := 0
		_ = newTailReader(bb.Log, 0, func(batch Batch) {
			if seen += len(batch.Notifications); seen == benchEntries {
				cancel()
			}
		}).run(ctx, streamid.Zero, -1)
		cancel()
	}
	reportRate(b, int64(b.N)*benchEntries)
}
