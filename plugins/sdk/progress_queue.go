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
func (r *progressQueue) add(p relay.Progress) {
	if len(p.Note) > wire.MaxNote {
		r.log.Error("progress report was dropped because its note is too long", "step", p.Step, "note_bytes",
			len(p.Note),
			"max_bytes", wire.MaxNote)
		return
	}
	p.Note = slices.Clone(p.Note)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	if i := slices.IndexFunc(r.pending, func(other relay.Progress) bool { return other.Step == p.Step }); i >= 0 {
		r.pending[i] = p
	} else {
		r.pending = append(r.pending, p)
	}
	r.wakeUp()
}

func (r *progressQueue) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// finish lets send return once everything is sent.
func (r *progressQueue) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.wakeUp()
}

// send sends reports until the end of the migration or of the stream.
func (r *progressQueue) send(stream grpc.ServerStreamingServer[driverv1.MigrateResponse]) {
	for range r.wake {
		r.mu.Lock()
		waiting, ended := r.pending, r.ended
		r.pending = nil
		r.mu.Unlock()
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
