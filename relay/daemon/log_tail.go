package daemon

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/dispatch"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
)

// startLog starts the readers and writers of the log: a dispatcher and a tail for each partition, and one inbox
// reader.
func (a *Daemon) startLog(ctx context.Context, p *components, s *stores, clients *hub.Hub) error {
	sinks := a.sinks.all()
	matcher := newMatcher(sinks)
	startPositions := make(map[string]bool, len(sinks))
	for _, sink := range sinks {
		startPositions[sink.name] = fromStart(sink.cfg)
	}
	var runs []task
	read := make(readPositions, s.keys.Partitions())
	for partition := range s.keys.Partitions() {
		d, err := dispatch.NewDispatcher(dispatch.Options{
			Partition: partition, Partitions: s.keys.Partitions(), Matcher: matcher, Log: s.log, Queues: s.queues,
			Lease:     s.leases.Lease("dispatch:"+strconv.Itoa(partition), leaseTime),
			Retention: func() eventlog.Retention { return a.logRetention(s.monitor.MaxMemory()) },
			Logger:    a.log.With("component", "dispatch"), Observer: dispatchObserver{a.metrics, &a.sinks},
		})
		if err != nil {
			return err
		}
		a.dispatchers = append(a.dispatchers, d)
		// This must happen before this node accepts anything.
		if err := registerSinks(ctx, s.queues, partition, startPositions); err != nil {
			return err
		}
		from, follow, err := s.log.TailFrom(ctx, partition)
		if err != nil {
			return fmt.Errorf("find the end of the log: %w", err)
		}
		clients.Start(partition, from)
		end := from.String()
		read[partition].Store(&end)
		runs = append(runs,
			task{"dispatcher " + strconv.Itoa(partition), d.Run},
			task{"log reader " + strconv.Itoa(partition), func(ctx context.Context) error {
				defer clients.Flush(partition)
				return follow(ctx, func(batch eventlog.Batch) {
					a.handleBatch(batch, clients, d)
					last := batch.Last // A copy: the address of a field would keep the whole batch in memory.
					read[partition].Store(&last)
				})
			}})
	}
	runs = append(runs, task{"lag", func(ctx context.Context) error { return a.updateLag(ctx, s.log, read) }})
	inbox := ingest.NewInboxReader(ingest.InboxOptions{
		Decoder: a.newDecoder(), Store: guardedInbox{s.inbox, s}, Lease: s.leases.Lease("inbox", leaseTime),
		Log: a.log.With("component", "inbox"), Observer: a.metrics,
	})
	p.startComponent(ctx, "log", runTogether(append(runs, task{"inbox", inbox.Run})))
	return nil
}

// logRetention returns the retention of one partition. By default the log gets half of the memory of Redis, so one
// producer cannot fill it until publishing stops for all.
func (a *Daemon) logRetention(maxMemory int64) eventlog.Retention {
	cfg := a.cfg.Redis
	maxBytes := cmp.Or(int64(cfg.Retention.MaxBytes), maxMemory/2)
	return eventlog.Retention{
		History: cfg.Retention.History, MaxLen: cfg.Retention.MaxLen,
		MaxBytes: maxBytes / int64(cfg.Partitions),
	}
}

// handleBatch passes new entries of the log to the clients of this node and to the dispatcher.
func (a *Daemon) handleBatch(batch eventlog.Batch, clients *hub.Hub, d *dispatch.Dispatcher) {
	if batch.Gap {
		a.metrics.Gap()
		a.log.Error("log entries were lost before they were read",
			"partition", batch.Partition, "after_entry_id", batch.Prev)
	}
	clients.Broadcast(hub.Batch{
		Partition: batch.Partition, Notifications: batch.Notifications, Gap: batch.Gap, End: batch.Last,
	})
	a.authentication.observeKeyChanges(batch, clients)
	if len(batch.Notifications) > 0 {
		a.metrics.Delayed(sinceStored(batch.Notifications[0].Cursor, time.Now()))
	}
	d.Offer(batch)
}

// registerSinks stores the start position of each new sink in a partition. The map says for each sink whether it
// starts at the beginning of the log.
func registerSinks(ctx context.Context, queues *queue.Store, partition int, fromStart map[string]bool) error {
	if len(fromStart) == 0 {
		return nil
	}
	if _, err := queues.EnsureSinks(ctx, partition, fromStart); err != nil {
		return fmt.Errorf("register the sinks: %w", err)
	}
	return nil
}

func fromStart(cfg config.Sink) bool { return cfg.From == "start" }

// newMatcher returns a matcher for the filters of the sinks.
func newMatcher(sinks []*openSink) *dispatch.Matcher {
	list := make([]dispatch.Sink, 0, len(sinks))
	for _, s := range sinks {
		list = append(list, dispatch.Sink{
			Name: s.name, Filter: s.filter, FromStart: fromStart(s.cfg), Backlog: s.cfg.Backlog,
			BacklogBytes: int64(s.cfg.BacklogBytes), AccountShare: s.cfg.AccountShare,
		})
	}
	return dispatch.NewMatcher(list)
}
