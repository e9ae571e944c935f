package app

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/config"
	"github.com/hubrelay/hubrelay/relay/dispatch"
	"github.com/hubrelay/hubrelay/relay/hub"
	"github.com/hubrelay/hubrelay/relay/ingest"
)

// startLog starts what reads and fills the log: for each partition the dispatcher and the tail, and one inbox reader.
func (a *App) startLog(ctx context.Context, p *parts, b *backbone.Backbone, clients *hub.Hub) error {
	sinks := a.sinks.all()
	matcher := newMatcher(sinks)
	places := make(map[string]bool, len(sinks))
	for _, s := range sinks {
		places[s.name] = fromStart(s.cfg)
	}
	var runs []run
	read := make(progress, b.Keys().Partitions())
	for partition := range b.Keys().Partitions() {
		d, err := dispatch.NewDispatcher(dispatch.Options{
			Partition: partition, Partitions: b.Keys().Partitions(), Matcher: matcher, Log: b,
			Lease:   b.Lease("dispatch:"+strconv.Itoa(partition), leaseTime),
			History: a.cfg.Redis.Retention.History, MaxLen: a.cfg.Redis.Retention.MaxLen,
			Logger: a.log.With("room", "dispatch"), Observer: dispatchObserver{a.metrics, &a.sinks},
		})
		if err != nil {
			return err
		}
		a.dispatchers = append(a.dispatchers, d)
		// Before anything can be accepted through this node.
		if err := joinSinks(ctx, b, partition, places); err != nil {
			return err
		}
		from, follow, err := b.TailFrom(ctx, partition)
		if err != nil {
			return fmt.Errorf("find the end of the log: %w", err)
		}
		clients.Start(partition, from)
		end := from.String()
		read[partition].Store(&end)
		runs = append(runs,
			run{"dispatcher " + strconv.Itoa(partition), d.Run},
			run{"log reader " + strconv.Itoa(partition), func(ctx context.Context) error {
				gathered := hub.NewGatherer(a.cfg.Websocket.Gather, clients.Broadcast)
				defer gathered.Close()
				return follow(ctx, func(batch backbone.Batch) {
					a.read(batch, gathered, d)
					last := batch.Last // not the address of a part of the batch, which would keep it all
					read[partition].Store(&last)
				})
			}})
	}
	runs = append(runs, run{"lag", func(ctx context.Context) error { return a.followLag(ctx, b, read) }})
	inbox := ingest.NewInbox(ingest.InboxOptions{
		Decoder: a.decoder(), Store: b, Lease: b.Lease("inbox", leaseTime),
		Log: a.log.With("room", "inbox"), Observer: a.metrics,
	})
	p.start(ctx, "log", together(append(runs, run{"inbox", inbox.Run})))
	return nil
}

// read hands what came out of the log to the clients of this node and to the dispatcher.
func (a *App) read(batch backbone.Batch, clients *hub.Gatherer, d *dispatch.Dispatcher) {
	if batch.Gap {
		a.metrics.Gap()
		a.log.Error("the log has lost entries before they were read", "partition", batch.Partition, "after", batch.Prev)
	}
	clients.Broadcast(hub.Batch{
		Partition: batch.Partition, Notifications: batch.Notifications, Gap: batch.Gap, Last: batch.Last,
	})
	if len(batch.Notifications) > 0 {
		a.metrics.Delayed(sinceStored(batch.Notifications[0].Cursor, time.Now()))
	}
	d.Offer(batch)
}

// joinSinks gives each new sink its place in a partition of the log, by its name at the log's start or at its end.
func joinSinks(ctx context.Context, b *backbone.Backbone, partition int, fromStart map[string]bool) error {
	if len(fromStart) == 0 {
		return nil
	}
	if _, err := b.EnsureSinks(ctx, partition, fromStart); err != nil {
		return fmt.Errorf("register the sinks: %w", err)
	}
	return nil
}

func fromStart(cfg config.Sink) bool { return cfg.From == "start" }

// newMatcher returns what finds the sinks that want a notification.
func newMatcher(sinks []*sink) *dispatch.Matcher {
	list := make([]dispatch.Sink, 0, len(sinks))
	for _, s := range sinks {
		list = append(list, dispatch.Sink{Name: s.name, Filter: s.filter, FromStart: fromStart(s.cfg), Backlog: s.cfg.Backlog})
	}
	return dispatch.NewMatcher(list)
}
