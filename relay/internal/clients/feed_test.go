package clients

import (
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

// The history of all partitions stays within its limit, in all encodings.
func TestFeed_LimitsHistory(t *testing.T) {
	t.Parallel()
	const most, partitions, size = 4 << 20, 4, 10_000
	h := New(Options{
		HistoryBytes: most, Partitions: partitions, Compression: Compression{Enabled: true, CPU: allCompressed.CPU},
	})
	for i := range 4 * most / size {
		p := i % partitions
		h.Broadcast(Batch{Partition: p, Notifications: []relay.Notification{sized("h", "a", "job.created", i, size)}})
		for _, l := range []*feed{h.feeds[p], h.mergedFeed} {
			l.mu.Lock()
			if l.nextSeq() > l.baseSeq {
				for as := range frame.EncodingCount {
					l.frameFor(l.entryAt(l.nextSeq()-1), as, l.positions, true)
				}
			}
			l.mu.Unlock()
		}
	}
	all := 0
	for _, l := range append([]*feed{h.mergedFeed}, h.feeds...) {
		took := 0
		for _, e := range l.entries[l.head:] {
			took += len(e.notification.Data)
			seen := map[*byte]bool{}
			for as := range frame.EncodingCount {
				if made := e.frames.Get(as); len(made) > 0 && !seen[&made[0]] {
					seen[&made[0]] = true
					took += len(made)
				}
			}
		}
		const last = int(frame.EncodingCount) * 2 * size // made after the last eviction
		if took > l.maxBytes+last || took < l.maxBytes/2 {
			t.Errorf("%d bytes are kept, the bound is %d", took, l.maxBytes)
		}
		all += took
	}
	if all > 2*most+(partitions+1)*int(frame.EncodingCount)*2*size {
		t.Errorf("%d bytes are kept in all, want two times %d", all, most)
	}
}
