package host

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// BenchmarkDeliver measures the path from Deliver to the plugin's acknowledgment, and the CPU of the host.
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
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	deliver := func(id string) {
		d := relay.Delivery{
			ID: id, Attempt: 1, Notifications: []relay.Notification{
				{ID: id, Topic: "ok", Hub: "h", Account: "a", Cursor: "1-1", Data: data},
			},
		}
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
			deliver(strconv.FormatInt(1e15+next.Add(1), 10))
		}
	})
	b.StopTimer()
	b.ReportMetric(float64((cpu(syscall.RUSAGE_SELF)-before).Nanoseconds())/1e3/float64(b.N), "host-us/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	_ = h.Close()
	b.ReportMetric(float64((cpu(syscall.RUSAGE_CHILDREN)-earlier).Nanoseconds())/1e3/float64(b.N), "plugin-us/op")
}

// BenchmarkRestart measures from a kill -9 of the plugin to the next ack.
func BenchmarkRestart(b *testing.B) {
	h, err := New(Options{
		Name: "bench", Command: []string{os.Args[0], "sdk"}, MaxCrashes: 1 << 20, MaxBackoff: DefaultBackoff,
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	deliver := func(id string) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return h.Deliver(ctx, one(id, 1, "ok"))
	}
	if err := deliver("first"); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := syscall.Kill(h.Status().PID, syscall.SIGKILL); err != nil {
			b.Fatal(err)
		}
		for deliver("again") != nil {
			runtime.Gosched()
		}
	}
}

// BenchmarkIdle measures what an idle plugin costs the host.
func BenchmarkIdle(b *testing.B) {
	const n = 20
	held := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := held()
	for range n {
		h, err := New(Options{Name: "bench", Command: []string{os.Args[0], "sdk"}})
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = h.Close() }()
		if err := h.Deliver(context.Background(), one("1", 1, "ok")); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(held()-before)/n/1024, "KiB/plugin")
	b.ReportMetric(0, "ns/op")
}

// cpu returns the CPU time of this process, or of its children that have ended.
func cpu(who int) time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(who, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
