package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// NoticeListener is a sink that may want the relay's own notifications.
type NoticeListener struct {
	Sink     string
	Filter   relay.Filter
	Ordering store.Ordering
	// Backlog is the maximum number of its scheduled deliveries. 0 means no limit.
	Backlog int64
}

// NoticesOptions describe [Notices].
type NoticesOptions struct {
	Store *store.Store
	// NewID returns an id as every notification has one.
	NewID func() string

	// Dropped is called for a notice that a listener's full delay queue did not take. It and Log may be nil.
	Dropped func(sink string)
	Log     *slog.Logger
}

// Notices brings the relay's own notifications to the sinks that name them, and to none about itself. They are in no
// log: the node where something happened parks them for each of these sinks, due at once. A nil Notices tells nobody.
// It may be used concurrently.
type Notices struct {
	o         NoticesOptions
	listeners atomic.Pointer[[]NoticeListener]
	dropLog   logLimiter
}

// NewNotices returns the notices of a daemon, to which nobody listens yet.
func NewNotices(o NoticesOptions) *Notices {
	if o.Dropped == nil {
		o.Dropped = func(string) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	n := &Notices{o: o, dropLog: logLimiter{now: time.Now, interval: warnInterval, maxLines: 1}}
	n.Listen(nil)
	return n
}

// Listen says who listens from now on: all sinks; those that want none of the relay's own notifications cost nothing.
func (n *Notices) Listen(all []NoticeListener) {
	all = slices.DeleteFunc(slices.Clone(all), func(l NoticeListener) bool {
		return !slices.ContainsFunc(relay.OperationalTopics(), func(t relay.TopicInfo) bool { return l.Filter.Topics.Match(t.Name) })
	})
	n.listeners.Store(&all)
}

// hasListener tells whether some sink may want a topic about another sink.
func (n *Notices) hasListener(topic, about string) bool {
	return n != nil && slices.ContainsFunc(*n.listeners.Load(), func(l NoticeListener) bool {
		return l.Sink != about && l.Filter.Topics.Match(topic)
	})
}

// notice is what the relay's own notifications say, in the form of all others.
type notice struct {
	Topic   string          `json:"topic"`
	Object  noticeObject    `json:"object"`
	Context relay.Context   `json:"context"`
	Flags   json.RawMessage `json:"flags"`
	// Sample says that nothing happened.
	Sample bool `json:"sample,omitempty"`
}

type noticeObject struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Error string `json:"error"`
	*deadLetterNotice
}

// deadLetterNotice is what is told of a dead letter besides.
type deadLetterNotice struct {
	Sink     string `json:"sink"`
	Topic    string `json:"topic"`
	Attempts int    `json:"attempts"`
	// Count is how many there were since the last notice, this one included.
	Count int `json:"count"`
}

// build makes the notification.
func (n *Notices) build(what notice) (relay.Notification, error) {
	what.Flags = json.RawMessage("null")
	c := &what.Context
	c.Environments, c.DNSZones, c.Clusters, c.Containers = []string{}, []string{}, []string{}, []string{}
	text, err := json.Marshal(what)
	if err != nil {
		return relay.Notification{}, fmt.Errorf("make a notification of our own: %w", err)
	}
	return relay.Notification{
		ID: n.o.NewID(), Topic: what.Topic, Hub: c.HubID, Account: c.AccountID, Data: text,
	}, nil
}

// send parks a notification for every sink that wants it, but the one that it is about. A repeat after an error parks
// nothing twice.
func (n *Notices) send(ctx context.Context, about string, note relay.Notification) error {
	body, err := store.NewScheduledRecord(note).Encode()
	if err != nil {
		return err
	}
	var errs []error
	told := false
	for _, l := range *n.listeners.Load() {
		if l.Sink == about || !l.Filter.Match(note) {
			continue
		}
		scheduled := []store.Scheduled{{ID: note.ID, Body: body, OrderingKey: l.Ordering.StoredKey(note)}}
		_, room, err := n.o.Store.Retries.ScheduleAll(ctx, l.Sink, l.Backlog, scheduled)
		switch {
		case err != nil:
			errs = append(errs, err)
		case room == 0:
			n.logDropped(l.Sink, note)
		default:
			told = true
		}
	}
	if told {
		errs = append(errs, n.o.Store.States.SignalChange(ctx))
	}
	return errors.Join(errs...)
}

func (n *Notices) logDropped(sink string, note relay.Notification) {
	n.o.Dropped(sink)
	if more, ok := n.dropLog.allowLine(); ok {
		n.o.Log.Warn("the delay queue of a sink is full and takes none of the relay's own notifications", "sink", sink,
			"topic", note.Topic, "data", string(note.Data), "lines_left_out", more)
	}
}

// Recovered tells that a sink which was disabled is active again. Where Redis is away it tries for a while.
func (n *Notices) Recovered(ctx context.Context, sink string) error {
	return n.sendSinkNotice(ctx, relay.TopicSinkRecovered, sink, store.StateActive, "")
}

// SourceGap tells that something of a source is missing, and why; hub is the hub that it reads, or empty. An id of 24
// hexadecimal digits makes a repeat recognisable. Where Redis is away it tries for a while.
func (n *Notices) SourceGap(ctx context.Context, source, hub, id, why string) error {
	if !n.hasListener(relay.TopicSourceGap, "") {
		return nil
	}
	note, err := n.build(notice{
		Topic: relay.TopicSourceGap, Object: noticeObject{ID: source, State: "gap", Error: why},
		Context: relay.Context{HubID: hub},
	})
	if err != nil {
		return err
	}
	note.ID = id
	return retryWrite(ctx, func(ctx context.Context) error { return n.send(ctx, "", note) })
}

func (n *Notices) sendSinkNotice(ctx context.Context, topic, sink string, state store.State, cause string) error {
	if !n.hasListener(topic, sink) {
		return nil
	}
	note, err := n.build(notice{Topic: topic, Object: noticeObject{ID: sink, State: string(state), Error: cause}})
	if err != nil {
		return err
	}
	return retryWrite(ctx, func(ctx context.Context) error { return n.send(ctx, sink, note) })
}

// What a sample is about is nobody's.
const (
	sampleSink   = "sample"
	sampleSource = "sample"
	sampleID     = "000000000000000000000000"
	sampleError  = "a sample; nothing happened"
)

// Sample makes a notification of one of [relay.OperationalTopics] that looks like a real one, marked by a member "sample".
// Nothing happened, and nobody is told.
func (n *Notices) Sample(topic string) (relay.Notification, error) {
	what := notice{Topic: topic, Sample: true}
	switch topic {
	case relay.TopicSinkDisabled:
		what.Object = noticeObject{ID: sampleSink, State: string(store.StateDisabled), Error: sampleError}
	case relay.TopicSinkRecovered:
		what.Object = noticeObject{ID: sampleSink, State: string(store.StateActive)}
	case relay.TopicDeadLetterCreated:
		what.Object = noticeObject{
			ID: sampleID, State: ReasonPermanent, Error: sampleError,
			deadLetterNotice: &deadLetterNotice{Sink: sampleSink, Topic: "container.created", Attempts: 1, Count: 1},
		}
		what.Context.HubID = sampleID
	case relay.TopicSourceGap:
		what.Object = noticeObject{ID: sampleSource, State: "gap", Error: sampleError}
	default:
		return relay.Notification{}, fmt.Errorf("make a sample: %s is no topic of our own", topic)
	}
	return n.build(what)
}
