package delivery

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	maxErrorBytes    = 512
	maxResponseBytes = 1 << 10
)

// Attempt is one line of a delivery's history, as dead letters show it.
type Attempt struct {
	Time    time.Time `json:"time"`
	Outcome string    `json:"outcome"`
	// Status is the far side's status code, zero where there was no answer.
	Status int `json:"status,omitempty"`
	// Response is the beginning of the far side's answer, at most 1 KiB.
	Response string `json:"answer,omitempty"`
	// Error says what went wrong, at most 512 bytes, without secrets.
	Error string `json:"error,omitempty"`
	// Milliseconds is how long the attempt took.
	Milliseconds int64 `json:"ms"`
}

func newAttempt(at time.Time, took time.Duration, err error) Attempt {
	outcome, _ := relay.Classify(err)
	a := Attempt{Time: at.UTC().Round(time.Millisecond), Outcome: outcome.String(), Milliseconds: took.Milliseconds()}
	if err == nil {
		return a
	}
	a.Error = truncate(err.Error(), maxErrorBytes)
	var answer *relay.ResponseError
	if errors.As(err, &answer) {
		a.Status, a.Response = answer.Status, truncate(answer.Body, maxResponseBytes)
	}
	return a
}

// truncate cuts s to at most n bytes without breaking a character.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// retryRecord is the body of a parked delivery.
type retryRecord struct {
	// AttemptCount is the number of attempts made so far.
	AttemptCount int       `json:"made"`
	First        time.Time `json:"first"`
	Attempts     []Attempt `json:"attempts"`
	// Notifications stand behind the rest, see parked.append; here in what was written before, and in dead letters taken back.
	Notifications []storedNotification `json:"notifications,omitempty"`
	// Digest is nil for a notification that was not gathered.
	Digest *relay.Digest `json:"digest,omitempty"`
	// Batch says that it was sealed as a batch.
	Batch bool `json:"batch,omitempty"`
}

// storedNotification has the data as a string: in dead letters JSON inside JSON would be reformatted, and receivers get it byte for byte.
type storedNotification struct {
	ID      string `json:"id"`
	Topic   string `json:"topic"`
	Hub     string `json:"hub"`
	Account string `json:"account,omitempty"`
	Cursor  string `json:"cursor,omitempty"`
	Data    string `json:"data"`
}

func newRecord(d relay.Delivery, first time.Time) *retryRecord {
	r := &retryRecord{First: first.UTC().Round(time.Millisecond), Digest: d.Digest, Batch: d.Batch}
	for _, n := range d.Notifications {
		r.Notifications = append(r.Notifications, newParked(n))
	}
	return r
}

func newParked(n relay.Notification) storedNotification {
	return storedNotification{ID: n.ID, Topic: n.Topic, Hub: n.Hub, Account: n.Account, Cursor: n.Cursor, Data: string(n.Data)}
}

// arrivedAt is when the oldest of the notifications was stored in the log, or now where that is not known.
func (r *retryRecord) arrivedAt(now time.Time) time.Time {
	at := now
	for _, n := range r.Notifications {
		if t := (relay.Notification{ID: n.ID, Cursor: n.Cursor}).StoredAt(); !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	return at
}

func (r *retryRecord) addAttempt(a Attempt) {
	r.AttemptCount++
	r.Attempts = append(r.Attempts, a)
}

// nextDelivery is the next attempt's.
func (r *retryRecord) nextDelivery(id string) relay.Delivery {
	d := relay.Delivery{ID: id, Attempt: r.AttemptCount + 1, Digest: r.Digest, Batch: r.Batch, Notifications: make([]relay.Notification, len(r.Notifications))}
	for i := range r.Notifications {
		d.Notifications[i] = r.Notifications[i].toNotification()
	}
	if d.Digest != nil {
		slices.SortStableFunc(d.Notifications, byCursor) // several lanes and nodes gather side by side
	}
	return d
}

// byCursor is the order of the log.
func byCursor(a, b relay.Notification) int { return comparePositions(a.Cursor, b.Cursor) }

// toNotification shares its data with n, which nobody may change: to copy that of a hundred costs as much as to sign it.
func (n *storedNotification) toNotification() relay.Notification {
	data := []byte{}
	if n.Data != "" {
		data = unsafe.Slice(unsafe.StringData(n.Data), len(n.Data))
	}
	return relay.Notification{ID: n.ID, Topic: n.Topic, Hub: n.Hub, Account: n.Account, Cursor: n.Cursor, Data: data}
}

// deadLetter is the stream entry of a delivery that will not be tried again. It keeps the ordering key, if there is one,
// for when it is taken back.
func (r *retryRecord) deadLetter(id, reason, key string, now time.Time) ([]any, error) {
	attempts, err := json.Marshal(r.Attempts)
	if err != nil {
		return nil, fmt.Errorf("encode a dead letter: %w", err)
	}
	n := r.Notifications[0]
	fields := []any{
		"id", id, "topic", n.Topic, "hub", n.Hub, "account", n.Account, "data", n.Data,
		"reason", reason, "attempts", string(attempts), "time", now.UTC().Format(time.RFC3339Nano),
	}
	if key != "" {
		fields = append(fields, "key", key)
	}
	if r.Digest != nil {
		digest, err := json.Marshal(r.Digest)
		if err != nil {
			return nil, fmt.Errorf("encode a dead letter: %w", err)
		}
		fields = append(fields, "digest", string(digest))
	}
	if r.Batch {
		fields = append(fields, "batch", "1")
	}
	if len(r.Notifications) == 1 {
		return fields, nil
	}
	all, err := json.Marshal(r.Notifications)
	if err != nil {
		return nil, fmt.Errorf("encode a dead letter: %w", err)
	}
	return append(fields, "notifications", string(all)), nil
}
