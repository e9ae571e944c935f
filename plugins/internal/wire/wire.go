// Package wire converts between the relay's structs and the messages of the protocol, for both sides: plugins/host and
// plugins/sdk.
//
// Only these packages use protobuf. This one starts no goroutines and makes no calls.
package wire

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/plugins/proto/sink/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// FromDelivery converts d to its message. The data of notifications is shared, not copied. The message has no timeout.
func FromDelivery(d relay.Delivery) *sinkv1.Delivery {
	// Almost all deliveries have one notification. These need one allocation.
	single := &struct {
		delivery sinkv1.Delivery
		first    sinkv1.Notification
		list     [1]*sinkv1.Notification
	}{}
	m := &single.delivery
	m.Id, m.Attempt, m.Digest = d.ID, uint32(max(0, d.Attempt)), fromDigest(d.Digest)
	m.Batch = d.Batch
	if m.Notifications = single.list[:0]; len(d.Notifications) > 1 {
		m.Notifications = make([]*sinkv1.Notification, 0, len(d.Notifications))
	}
	for i := range d.Notifications {
		n, to := &d.Notifications[i], &single.first
		if i > 0 {
			to = &sinkv1.Notification{}
		}
		to.Id, to.Topic, to.Hub, to.Account, to.Cursor, to.Data = n.ID, n.Topic, n.Hub, n.Account, n.Cursor, n.Data
		m.Notifications = append(m.Notifications, to)
	}
	return m
}

// ToDelivery is the inverse of FromDelivery.
func ToDelivery(m *sinkv1.Delivery) (d relay.Delivery, timeout time.Duration) {
	d = relay.Delivery{
		ID: m.GetId(), Attempt: int(m.GetAttempt()), Digest: toDigest(m.GetDigest()), Batch: m.GetBatch(),
	}
	d.Notifications = make([]relay.Notification, len(m.GetNotifications()))
	for i, n := range m.GetNotifications() {
		d.Notifications[i] = relay.Notification{
			ID: n.GetId(), Topic: n.GetTopic(), Hub: n.GetHub(), Account: n.GetAccount(), Cursor: n.GetCursor(),
			Data: n.GetData(),
		}
	}
	return d, fromMilliseconds(m.GetTimeoutMs())
}

// fromMilliseconds converts a number from the other side. It limits the number, because the product must not overflow.
func fromMilliseconds(ms int64) time.Duration {
	return time.Duration(min(max(0, ms), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

func fromDigest(d *relay.Digest) *sinkv1.Digest {
	if d == nil {
		return nil
	}
	m := &sinkv1.Digest{Count: int64(d.Count), FirstNs: fromTime(d.First), LastNs: fromTime(d.Last), By: d.Shared}
	m.Topics = make(map[string]int64, len(d.Topics))
	for topic, n := range d.Topics {
		m.Topics[topic] = int64(n)
	}
	return m
}

func toDigest(m *sinkv1.Digest) *relay.Digest {
	if m == nil {
		return nil
	}
	d := &relay.Digest{
		Count: int(m.GetCount()), First: toTime(m.GetFirstNs()), Last: toTime(m.GetLastNs()), Shared: m.GetBy(),
	}
	d.Topics = make(map[string]int, len(m.GetTopics()))
	for topic, n := range m.GetTopics() {
		d.Topics[topic] = int(n)
	}
	return d
}

func fromTime(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func toTime(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// FromOutcome converts the result of an attempt to its acknowledgment.
func FromOutcome(id string, attempt int, err error) *sinkv1.Ack {
	m := &sinkv1.Ack{DeliveryId: id, Attempt: uint32(max(0, attempt)), Outcome: sinkv1.Outcome_OUTCOME_OK}
	if err == nil {
		return m
	}
	m.Error = truncate(err.Error())
	switch outcome, after := relay.Classify(err); {
	case outcome == relay.OutcomePermanent:
		m.Outcome = sinkv1.Outcome_OUTCOME_PERMANENT
	case outcome == relay.OutcomeGone:
		m.Outcome = sinkv1.Outcome_OUTCOME_GONE
	case after > 0:
		m.Outcome, m.RetryAfterMs = sinkv1.Outcome_OUTCOME_RETRY_AFTER, max(1, after.Milliseconds())
	default:
		m.Outcome = sinkv1.Outcome_OUTCOME_RETRY
	}
	var response *relay.ResponseError
	if errors.As(err, &response) {
		m.Answer = &sinkv1.Answer{Status: int32(response.Status), Body: truncate(response.Body)}
	}
	return m
}

// ToOutcome returns the error of an acknowledgment, or nil for success. The text is untrusted: it is truncated to
// maxText and made valid UTF-8.
func ToOutcome(m *sinkv1.Ack) error {
	if m.GetOutcome() == sinkv1.Outcome_OUTCOME_OK {
		return nil
	}
	var response *relay.ResponseError
	if a := m.GetAnswer(); a != nil {
		response = &relay.ResponseError{Status: int(a.GetStatus()), Body: truncate(a.GetBody())}
	}
	failed := pluginError(m.GetError(), response)
	switch m.GetOutcome() {
	case sinkv1.Outcome_OUTCOME_RETRY:
		return failed
	case sinkv1.Outcome_OUTCOME_RETRY_AFTER:
		return relay.RetryAfter(failed, fromMilliseconds(m.GetRetryAfterMs()))
	case sinkv1.Outcome_OUTCOME_PERMANENT:
		return relay.Permanent(failed)
	case sinkv1.Outcome_OUTCOME_GONE:
		return relay.Gone(failed)
	}
	return fmt.Errorf("the acknowledgment has the unknown outcome %d: %w", m.GetOutcome(), failed)
}

func pluginError(text string, response *relay.ResponseError) *Error {
	if text = truncate(text); text == "" {
		text = "the plugin gave no reason"
	}
	return &Error{text: text, response: response}
}

// Error is a failed attempt or migration, as the plugin reported it.
type Error struct {
	text     string
	response *relay.ResponseError
}

func (e *Error) Error() string { return e.text }

// Unwrap returns the response of the destination, if there is one.
func (e *Error) Unwrap() error {
	if e.response == nil {
		return nil
	}
	return e.response
}

// toValidUTF8 returns s without invalid UTF-8, which a message cannot contain.
func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "�") }

// maxText is the maximum length of a plugin's error text, in bytes.
const maxText = 1 << 10

func truncate(s string) string {
	if len(s) > maxText {
		s = s[:maxText] // first, because it may be very long
	}
	if s = toValidUTF8(s); len(s) > maxText {
		s = relay.Truncate(s, maxText-len("…"))
	}
	return s
}

// The constants of both sides of the handshake.
const (
	// CookieName is the environment variable that tells a program to run as a plugin. Its value is the kind.
	CookieName = "HUBRELAY_PLUGIN"
	// KindSink is the kind of sinks, KindDriver the kind of migration drivers.
	KindSink   = "sink"
	KindDriver = "driver"
	// Version is the version of the protocol.
	Version = 1
	// MaxMessage is the maximum size of a message to the plugin in bytes.
	MaxMessage = 64 << 20
	// MaxResponse is the maximum size of a message from the plugin in bytes.
	MaxResponse = 4 << 20
	// MaxAckMessage is the maximum size of a message from the plugin on the stream of deliveries, in bytes. It is smaller,
	// because small acknowledgments need a hundred times as much memory when decoded.
	MaxAckMessage = 1 << 20
	// Window is the maximum number of unread bytes on a stream.
	Window = 1 << 20
	// MaxCredits is the maximum number of deliveries that a plugin may have at once.
	MaxCredits = math.MaxUint16
)

// The members of a line on a plugin's standard error that is a log record: a JSON object that has LogMessage. Its level
// is one of slog's names; every other member is an attribute.
const (
	LogMessage = "@message"
	LogLevel   = "level"
	LogTime    = "time"
)
