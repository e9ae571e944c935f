package daemon

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/dispatch"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/lifecycle"
)

// startLog starts the readers and writers of the log: a dispatcher and a tail for each partition, and one inbox
// reader. They stop concurrently.
func (d *Daemon) startLog(
	ctx context.Context, group *lifecycle.Group, s *stores, streamServer *clients.Server, deliveries *delivery.Service,
) error {
	if d.authentication.forward != nil {
		group.Start(ctx, "record of credential changes", s.changes.Run)
	}
	readers := lifecycle.NewGroup(d.log)
	group.Start(ctx, "log", readers.Run) // first, so an error below stops what has started
	read := make(eventlog.ReadPositions, s.keys.Partitions())
	for partition := range s.keys.Partitions() {
		dispatcher, err := deliveries.AddPartition(ctx, partition)
		if err != nil {
			return err
		}
		from, follow, err := s.log.TailFrom(ctx, partition)
		if err != nil {
			return fmt.Errorf("find the end of the log: %w", err)
		}
		streamServer.SetPosition(partition, from)
		read.Set(partition, from.String())
		readers.Start(ctx, "dispatcher "+strconv.Itoa(partition), dispatcher.Run)
		readers.Start(ctx, "log reader "+strconv.Itoa(partition), func(ctx context.Context) error {
			defer streamServer.Flush(partition)
			return follow(ctx, func(batch eventlog.Batch) {
				d.handleBatch(batch, s, streamServer, dispatcher)
				read.Set(partition, batch.Last)
			})
		})
	}
	readers.Start(ctx, "lag", func(ctx context.Context) error { return s.log.WatchLag(ctx, read, d.metrics.Lag) })
	inbox := ingest.NewInboxReader(ingest.InboxOptions{
		Decoder: d.newDecoder(), Store: guardedInbox{s.inbox, s}, Lease: s.leases.Lease("inbox", lease.DefaultTTL),
		Log: d.log.With("component", "inbox"), Observer: d.metrics,
	})
	readers.Start(ctx, "inbox", inbox.Run)
	if d.authentication.forward == nil {
		return nil
	}
	readers.Start(ctx, "credential changes", func(ctx context.Context) error {
		return d.authentication.reloadChanges(ctx, s.changes, streamServer)
	})
	return s.changes.Load(ctx, d.authentication.forward)
}

// logRetention returns the retention of one partition. By default the log gets half of the memory of Redis, so one
// producer cannot fill it until publishing stops for all.
func (d *Daemon) logRetention(maxMemory int64) eventlog.Retention {
	cfg := d.cfg.Redis
	maxBytes := cmp.Or(int64(cfg.Retention.MaxBytes), maxMemory/2)
	return eventlog.Retention{
		History: cfg.Retention.History, MaxLen: cfg.Retention.MaxLen,
		MaxBytes: maxBytes / int64(cfg.Partitions),
	}
}

// startHistory starts the recorder of the history. It stops after everything that records. It is nil if the configuration
// disables it.
func (d *Daemon) startHistory(
	ctx context.Context, group *lifecycle.Group, s *stores, node string,
) *history.Recorder {
	cfg := d.cfg.History
	if cfg.Deliveries == config.HistoryNone {
		return nil
	}
	recorder := history.NewRecorder(history.RecorderOptions{
		Store: s.history, Node: node, OnlyFailures: cfg.Deliveries == config.HistoryFailures,
		Retention: func() history.Retention {
			maxBytes := int64(cfg.MaxBytes)
			if memory := s.monitor.MaxMemory(); memory > 0 {
				maxBytes = min(maxBytes, memory/10)
			}
			return history.Retention{MaxAge: cfg.MaxAge, MaxBytes: maxBytes}
		},
		Observer: d.metrics, Log: d.log.With("component", "history"),
	})
	group.Start(ctx, "history", recorder.Run)
	return recorder
}

// handleBatch passes new entries of the log to the clients of this node and to the dispatcher.
func (d *Daemon) handleBatch(batch eventlog.Batch, s *stores, streamServer *clients.Server, dispatcher *dispatch.Dispatcher) {
	if batch.Gap {
		d.metrics.Gap()
		d.log.Error("log entries were lost before they were read",
			"partition", batch.Partition, "position", batch.Prev)
	}
	streamServer.Broadcast(clients.Batch{
		Partition: batch.Partition, Notifications: batch.Notifications, Gap: batch.Gap, End: batch.Last,
	})
	d.authentication.observeKeyChanges(batch, s.changes, streamServer)
	if len(batch.Notifications) > 0 {
		d.metrics.Delayed(eventlog.Age(batch.Notifications[0].Cursor, time.Now()))
	}
	dispatcher.Offer(batch)
}
