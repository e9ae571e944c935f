package queue

import (
	"fmt"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func BenchmarkEnqueue(b *testing.B) {
	const entries, batch = 100_000, 512
	for _, sinks := range []int{1, 4} {
		b.Run(fmt.Sprintf("matching=%d", sinks), func(b *testing.B) {
			s := open(b, redistest.Start(b, "--appendfsync", "everysec"), redisconn.Options{})
			for i := 0; i < entries; i += 100 {
				mustAppend(b, s, notifications("h", i, i+99)...)
			}
			list := readLog(b, s, 0)
			var names []string
			var all []int
			for i := range sinks {
				names, all = append(names, fmt.Sprint("sink", i)), append(all, i)
			}
			b.ResetTimer()
			from, done := streamid.Zero, 0
			for range b.N {
				if done+batch > len(list) { // start again with empty queues
					b.StopTimer()
					for _, name := range names {
						s.Commands().Del(b.Context(), Key(s.Keys(), name, 0))
					}
					key := eventlog.DispatchPositionKey(s.Keys(), 0)
					s.Commands().HSet(b.Context(), key, "position", streamid.Zero)
					from, done = streamid.Zero, 0
					b.StartTimer()
				}
				r := EnqueueRequest{From: from, EntriesCovered: batch, Sinks: names}
				for _, n := range list[done : done+batch] {
					r.Matches, r.To = append(r.Matches, SinkMatch{n.Cursor, all}), n.Cursor
				}
				result, err := s.Enqueue(b.Context(), r)
				if err != nil || !result.Committed {
					b.Fatal(result, err)
				}
				from, done = r.To, done+batch
			}
			b.ReportMetric(float64(b.N)*batch/b.Elapsed().Seconds(), "entries/s")
		})
	}
}
