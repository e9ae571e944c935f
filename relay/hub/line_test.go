package hub

import (
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

// What is kept stays within its bound, in whatever forms clients get it, and the bound is for all partitions.
func TestHistoryStaysWithinItsBound(t *testing.T) {
	t.Parallel()
	const most, partitions, size = 4 << 20, 4, 10_000
	h := New(Options{
		HistoryBytes: most, Partitions: partitions, Compression: Compression{Enabled: true, CPU: allCompressed.CPU},
	})
	for i := range 4 * most / size {
		p := i % partitions
		h.Broadcast(Batch{Partition: p, Notifications: []relay.Notification{sized("h", "a", "job.created", i, size)}})
		for _, l := range []*line{h.lines[p], h.merged} {
			l.mu.Lock()
			if l.end() > l.base {
				for as := range forms {
					l.frame(l.entry(l.end()-1), as, l.at, true)
				}
			}
			l.mu.Unlock()
		}
	}
	all := 0
	for _, l := range append([]*line{h.merged}, h.lines...) {
		took := 0
		for _, e := range l.kept[l.head:] {
			took += len(e.n.Data)
			seen := map[*byte]bool{}
			for _, frame := range e.frames {
				if len(frame) > 0 && !seen[&frame[0]] {
					seen[&frame[0]] = true
					took += len(frame)
				}
			}
		}
		const last = int(forms) * 2 * size // comes behind the last look at the bound
		if took > l.most+last || took < l.most/2 {
			t.Errorf("%d bytes are kept, the bound is %d", took, l.most)
		}
		all += took
	}
	if all > 2*most+(partitions+1)*int(forms)*2*size {
		t.Errorf("%d bytes are kept in all, want two times %d", all, most)
	}
}
