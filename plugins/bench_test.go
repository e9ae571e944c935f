package plugins

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// BenchmarkDeliver measures the way from Deliver to the plugin's ack, and what the host's side of it costs.
func BenchmarkDeliver(b *testing.B) {
	for _, callers := range []int{1, 64, 1024} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) { benchmarkDeliver(b, callers) })
	}
}

func benchmarkDeliver(b *testing.B, callers int) {
	h, err := New(Options{Name: "bench", Command: []string{os.Args[0], "sdk"}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	data := []byte(`{"topic":"ok","more":"` + strings.Repeat("x", 430) + `"}`)
	deliver := func(id string) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		d := relay.Delivery{ID: id, Attempt: 1, Notifications: []relay.Notification{{ID: id, Topic: "ok", Hub: "h", Account: "a", Cursor: "1-1", Data: data}}}
		if err := h.Deliver(ctx, d); err != nil {
			b.Error(err)
		}
	}
	deliver("first")
	var next atomic.Int64
	b.SetParallelism((callers + 1) / 2)
	b.ReportAllocs()
	before, earlier := cpu(syscall.RUSAGE_SELF), cpu(syscall.RUSAGE_CHILDREN)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			deliver(fmt.Sprintf("%024d", next.Add(1)))
		}
	})
	b.StopTimer()
	b.ReportMetric(float64((cpu(syscall.RUSAGE_SELF)-before).Nanoseconds())/1e3/float64(b.N), "host-us/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	_ = h.Close()
	b.ReportMetric(float64((cpu(syscall.RUSAGE_CHILDREN)-earlier).Nanoseconds())/1e3/float64(b.N), "plugin-us/op")
}

// cpu is what this process has used, or its children that have ended.
func cpu(who int) time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(who, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
