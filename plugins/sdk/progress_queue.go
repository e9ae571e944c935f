package sdk

import (
	"log/slog"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	"github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// progressQueue contains the unsent reports of one migration, the latest of each step, so a reporter never waits.
type progressQueue struct {
	log  *slog.Logger
	wake chan struct{} // holds a value if there is something to send

	mu      sync.Mutex
	pending []relay.Progress
	ended   bool
}

func newProgressQueue(log *slog.Logger) *progressQueue {
	return &progressQueue{log: log, wake: make(chan struct{}, 1)}
}

// add adds a report. It ignores reports after the end, and reports that the daemon would reject.
func (q *progressQueue) add(p relay.Progress) {
	if len(p.Note) > wire.MaxNote {
		q.log.Error("progress report was dropped because its note is too long", "step", p.Step, "note_bytes",
			len(p.Note),
			"max_bytes", wire.MaxNote)
		return
	}
	p.Note = slices.Clone(p.Note)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return
	}
	if i := slices.IndexFunc(q.pending, func(other relay.Progress) bool { return other.Step == p.Step }); i >= 0 {
		q.pending[i] = p
	} else {
		q.pending = append(q.pending, p)
	}
	q.wakeUp()
}

func (q *progressQueue) wakeUp() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// finish lets send return once everything is sent.
func (q *progressQueue) finish() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.wakeUp()
}

// send sends reports until the end of the migration or of the stream.
func (q *progressQueue) send(stream grpc.ServerStreamingServer[driverv1.MigrateResponse]) {
	for range q.wake {
		q.mu.Lock()
		waiting, ended := q.pending, q.ended
		q.pending = nil
		q.mu.Unlock()
		for _, p := range waiting {
			if stream.Send(&driverv1.MigrateResponse{
				Event: &driverv1.MigrateResponse_Progress{Progress: wire.FromProgress(p)},
			}) != nil {
				return
			}
		}
		if ended {
			return
		}
	}
}
