// Package notice sends the relay's own notifications, such as hubrelay.sink.disabled, to the sinks that match them.
//
// Notices are not in the log. The node on which something happened schedules them for each matching sink. A sink gets
// no notice about itself. The package does not decide when a sink is disabled or a delivery becomes a dead letter.
package notice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/logsample"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// droppedLogInterval is the minimum time between two log records about dropped notices.
const droppedLogInterval = time.Minute

// RetryStore schedules deliveries. [store.Retries] implements it.
type RetryStore interface {
	ScheduleAll(
		ctx context.Context, sink string, maxBacklog int64, all []store.Scheduled,
	) (added, processed int, err error)
}

// StateStore makes nodes check their sinks. [store.States] implements it.
type StateStore interface {
	SignalChange(ctx context.Context) error
}

var (
	_ RetryStore = (*store.Retries)(nil)
	_ StateStore = (*store.States)(nil)
)

// Listener is a sink that may match notices.
type Listener struct {
	Sink     string
	Filter   relay.Filter
	Ordering store.Ordering
	// Backlog is the maximum number of its scheduled deliveries. 0 means no limit.
	Backlog int64
}

// Options configure a [Publisher].
type Options struct {
	Retries RetryStore
	States  StateStore
	// NewID returns a new notification ID.
	NewID func() string

	// Dropped is called if a full retry queue does not take a notice. It and Log may be nil.
	Dropped func(sink string)
	Log     *slog.Logger
}

// Publisher sends notices. A nil Publisher sends none. It may be used concurrently.
type Publisher struct {
	o         Options
	listeners atomic.Pointer[[]Listener]
	dropLog   *logsample.Limiter
}

// NewPublisher returns a Publisher without listeners.
func NewPublisher(o Options) *Publisher {
	if o.Dropped == nil {
		o.Dropped = func(string) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Publisher{o: o, dropLog: logsample.New(1, droppedLogInterval, nil)}
	p.SetListeners(nil)
	return p
}

// SetListeners replaces all listeners. Sinks that match no operational topic cost nothing.
func (p *Publisher) SetListeners(all []Listener) {
	all = slices.DeleteFunc(slices.Clone(all), func(l Listener) bool {
		return !slices.ContainsFunc(relay.OperationalTopics(), func(t relay.TopicInfo) bool {
			return l.Filter.Topics.Match(t.Name)
		})
	})
	p.listeners.Store(&all)
}

// hasListener reports whether a sink may match a topic about another sink.
func (p *Publisher) hasListener(topic, about string) bool {
	return p != nil && slices.ContainsFunc(*p.listeners.Load(), func(l Listener) bool {
		return l.Sink != about && l.Filter.Topics.Match(topic)
	})
}

// body is a notice in the format of all notifications.
type body struct {
	Topic   string          `json:"topic"`
	Object  object          `json:"object"`
	Context relay.Context   `json:"context"`
	Flags   json.RawMessage `json:"flags"`
	// Sample is set if nothing happened.
	Sample bool `json:"sample,omitempty"`
}

type object struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Error string `json:"error"`
	*deadLetterInfo
}

// deadLetterInfo is the part of a notice about a dead letter only.
type deadLetterInfo struct {
	Sink     string `json:"sink"`
	Topic    string `json:"topic"`
	Attempts int    `json:"attempts"`
	// Count is the number of dead letters since the last notice, including this one.
	Count int `json:"count"`
}

func (p *Publisher) newNotification(b body) (relay.Notification, error) {
	b.Flags = json.RawMessage("null")
	c := &b.Context
	c.Environments, c.DNSZones, c.Clusters, c.Containers = []string{}, []string{}, []string{}, []string{}
	text, err := json.Marshal(b)
	if err != nil {
		return relay.Notification{}, fmt.Errorf("encode notice: %w", err)
	}
	return relay.Notification{
		ID: p.o.NewID(), Topic: b.Topic, Hub: c.HubID, Account: c.AccountID, Data: text,
	}, nil
}

// send schedules a notification for every matching sink, except the one that it is about. A repetition after an error
// schedules nothing twice.
func (p *Publisher) send(ctx context.Context, about string, n relay.Notification) error {
	text, err := store.NewScheduledRecord(n).Encode()
	if err != nil {
		return err
	}
	var errs []error
	scheduled := false
	for _, l := range *p.listeners.Load() {
		if l.Sink == about || !l.Filter.Match(n) {
			continue
		}
		delivery := []store.Scheduled{{ID: n.ID, Body: text, OrderingKey: l.Ordering.StoredKey(n)}}
		_, processed, err := p.o.Retries.ScheduleAll(ctx, l.Sink, l.Backlog, delivery)
		switch {
		case err != nil:
			errs = append(errs, err)
		case processed == 0:
			p.reportDropped(l.Sink, n)
		default:
			scheduled = true
		}
	}
	if scheduled {
		errs = append(errs, p.o.States.SignalChange(ctx))
	}
	return errors.Join(errs...)
}

func (p *Publisher) reportDropped(sink string, n relay.Notification) {
	p.o.Dropped(sink)
	if suppressed, ok := p.dropLog.Allow(); ok {
		p.o.Log.Warn("notice dropped because the retry queue of a sink is full", "sink", sink, "topic", n.Topic,
			"data", string(n.Data), "suppressed_lines", suppressed)
	}
}

// SinkDisabled publishes that a sink was disabled. It repeats a failed write for up to 30 seconds.
func (p *Publisher) SinkDisabled(ctx context.Context, sink, reason string) error {
	return p.publishSink(ctx, relay.TopicSinkDisabled, sink, store.StateDisabled, reason)
}

// SinkRecovered publishes that a disabled sink is active again. It repeats a failed write for up to 30 seconds.
func (p *Publisher) SinkRecovered(ctx context.Context, sink string) error {
	return p.publishSink(ctx, relay.TopicSinkRecovered, sink, store.StateActive, "")
}

func (p *Publisher) publishSink(ctx context.Context, topic, sink string, state store.State, reason string) error {
	if !p.hasListener(topic, sink) {
		return nil
	}
	n, err := p.newNotification(body{Topic: topic, Object: object{ID: sink, State: string(state), Error: reason}})
	if err != nil {
		return err
	}
	return store.Persist(ctx, func(ctx context.Context) error { return p.send(ctx, sink, n) })
}

// SourceGap publishes that events of a source were lost. hub is the hub that the source reads, or empty. id is the
// notification ID, so a repetition is recognized. SourceGap repeats a failed write for up to 30 seconds.
func (p *Publisher) SourceGap(ctx context.Context, source, hub, id, reason string) error {
	if !p.hasListener(relay.TopicSourceGap, "") {
		return nil
	}
	n, err := p.newNotification(body{
		Topic: relay.TopicSourceGap, Object: object{ID: source, State: "gap", Error: reason},
		Context: relay.Context{HubID: hub},
	})
	if err != nil {
		return err
	}
	n.ID = id
	return store.Persist(ctx, func(ctx context.Context) error { return p.send(ctx, "", n) })
}

const (
	sampleName  = "sample"
	sampleID    = "000000000000000000000000"
	sampleError = "a sample; nothing happened"
)

// Sample returns a notification with one of [relay.OperationalTopics], marked with the member "sample". It publishes
// nothing.
func (p *Publisher) Sample(topic string) (relay.Notification, error) {
	b := body{Topic: topic, Sample: true}
	switch topic {
	case relay.TopicSinkDisabled:
		b.Object = object{ID: sampleName, State: string(store.StateDisabled), Error: sampleError}
	case relay.TopicSinkRecovered:
		b.Object = object{ID: sampleName, State: string(store.StateActive)}
	case relay.TopicDeadLetterCreated:
		b.Object = object{
			ID: sampleID, State: "permanent", Error: sampleError,
			deadLetterInfo: &deadLetterInfo{Sink: sampleName, Topic: "container.created", Attempts: 1, Count: 1},
		}
		b.Context.HubID = sampleID
	case relay.TopicSourceGap:
		b.Object = object{ID: sampleName, State: "gap", Error: sampleError}
	default:
		return relay.Notification{}, fmt.Errorf("create sample: %s is not an operational topic", topic)
	}
	return p.newNotification(b)
}
