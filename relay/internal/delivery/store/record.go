package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	// MaxErrorBytes is the maximum length of an error text in Redis.
	MaxErrorBytes    = 512
	maxResponseBytes = 1 << 10
)

// Attempt is an entry in the history of a delivery. Dead letters contain it.
type Attempt struct {
	Time    time.Time `json:"time"`
	Outcome string    `json:"outcome"`
	// Status is the status code of the destination, or 0 if it did not respond.
	Status int `json:"status,omitempty"`
	// Response is the start of the destination's response, at most 1 KiB.
	Response string `json:"response,omitempty"`
	// Error is at most 512 bytes and contains no secrets.
	Error string `json:"error,omitempty"`
	// DurationMS is the duration of the attempt in milliseconds, with three decimals.
	DurationMS float64 `json:"ms"`
}

// NewAttempt returns the history entry of an attempt that started at a time and ended with err, which may be nil.
func NewAttempt(startedAt time.Time, duration time.Duration, err error) Attempt {
	outcome, _ := relay.Classify(err)
	a := Attempt{
		Time: startedAt.UTC().Round(time.Millisecond), Outcome: outcome.String(), DurationMS: float64(duration.Microseconds()) / 1000,
	}
	if err == nil {
		return a
	}
	a.Error = Truncate(err.Error(), MaxErrorBytes)
	var response *relay.ResponseError
	if errors.As(err, &response) {
		a.Status, a.Response = response.Status, Truncate(response.Body, maxResponseBytes)
	}
	return a
}

// Truncate shortens s to at most n bytes without splitting a character.
func Truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Record is a delivery with the history of its attempts, as the retry queue stores it.
type Record struct {
	// AttemptCount is the number of attempts since the delivery was created or replayed.
	AttemptCount int `json:"made"`
	// First is the time of the first of those attempts, or at which the delivery was scheduled without one. It is zero after a
	// replay.
	First    time.Time `json:"first"`
	Attempts []Attempt `json:"attempts"`
	// Notifications follow the JSON in the encoding. They are part of the JSON only in a replayed dead letter.
	Notifications []Notification `json:"notifications,omitempty"`
	// Digest is set if the delivery summarizes notifications.
	Digest *relay.Digest `json:"digest,omitempty"`
	// Batch is set if the delivery was sealed as a batch, which may contain one notification.
	Batch bool `json:"batch,omitempty"`
	// IsStandIn is set if the only notification represents others that a digest did not list.
	IsStandIn bool `json:"stand_in,omitempty"`
}

// Notification is a stored [relay.Notification]. Data is a string, because JSON within JSON would be reformatted, and
// destinations get it byte for byte.
type Notification struct {
	ID      string `json:"id"`
	Topic   string `json:"topic"`
	Hub     string `json:"hub"`
	Account string `json:"account,omitempty"`
	Cursor  string `json:"cursor,omitempty"`
	Data    string `json:"data"`
}

// NewRecord returns the record of a delivery that was first attempted or scheduled at first.
func NewRecord(d relay.Delivery, first time.Time) *Record {
	r := &Record{First: first.UTC().Round(time.Millisecond), Digest: d.Digest, Batch: d.Batch}
	for _, n := range d.Notifications {
		r.Notifications = append(r.Notifications, newNotification(n))
	}
	return r
}

// NewScheduledRecord returns the record of a notification that was never attempted.
func NewScheduledRecord(n relay.Notification) *Record {
	return NewRecord(relay.Delivery{Notifications: []relay.Notification{n}}, time.Time{})
}

func newNotification(n relay.Notification) Notification {
	return Notification{
		ID: n.ID, Topic: n.Topic, Hub: n.Hub, Account: n.Account, Cursor: n.Cursor, Data: string(n.Data),
	}
}

// Halves returns the records of both halves of a batch or digest, and of the notifications that it does not list. There are at least
// two if [Record.CanSplit]. They have the history of the whole, but their attempts are counted from the start.
func (r *Record) Halves() []*Record {
	middle := len(r.Notifications) / 2
	parts := [][]Notification{r.Notifications[:middle], r.Notifications[middle:]}
	if middle == 0 {
		parts = parts[1:]
	}
	return r.splitInto(parts)
}

// CanSplit reports whether a batch or digest has several notifications, also ones that it does not list.
func (r *Record) CanSplit() bool { return len(r.Notifications) > 1 || r.hasUnlisted() }

// HasSeveralAccounts reports whether the notifications of a batch or digest may belong to several accounts.
func (r *Record) HasSeveralAccounts() bool {
	return slices.ContainsFunc(r.Notifications, func(n Notification) bool { return n.Account != r.Notifications[0].Account }) ||
		r.CountsOtherAccounts()
}

// CountsOtherAccounts reports whether a digest counts notifications that it does not list, and that may belong to other accounts.
func (r *Record) CountsOtherAccounts() bool {
	return r.Digest != nil && r.Digest.Shared[SharedAccount] == "" && (r.IsStandIn || r.hasUnlisted())
}

// hasUnlisted reports whether a digest counts notifications that it neither lists nor has a stand-in for.
func (r *Record) hasUnlisted() bool {
	if r.Digest == nil || r.IsStandIn {
		return false
	}
	counted := 0
	for _, n := range r.Digest.Topics {
		counted += n
	}
	return counted > len(r.Notifications)
}

// SplitByAccount returns a record for each account of a batch or digest, and one for the notifications that it does not list. They
// have the history of the whole, and, except that one, its number of attempts.
func (r *Record) SplitByAccount() []*Record {
	var parts [][]Notification
	places := make(map[string]int)
	for _, n := range r.Notifications {
		place, ok := places[n.Account]
		if !ok {
			place = len(parts)
			places[n.Account], parts = place, append(parts, nil)
		}
		parts[place] = append(parts[place], n)
	}
	records := r.splitInto(parts)
	for _, part := range records {
		if !part.IsStandIn {
			part.AttemptCount = r.AttemptCount
		}
	}
	return records
}

// splitInto returns a record for each part of the notifications. The parts of a digest keep its times and count only their own
// notifications. Those that the digest does not list get a record with a stand-in, because they may belong to other accounts than a
// part that becomes a dead letter.
func (r *Record) splitInto(parts [][]Notification) []*Record {
	records := make([]*Record, 0, len(parts)+1)
	add := func(list []Notification, digest *relay.Digest) *Record {
		part := &Record{First: r.First, Attempts: r.attemptsOfPart(), Notifications: list, Digest: digest, Batch: r.Batch}
		records = append(records, part)
		return part
	}
	for _, list := range parts {
		var digest *relay.Digest
		if r.Digest != nil {
			copied := *r.Digest
			copied.Topics, copied.Count = countTopics(list), len(list)
			digest = &copied
		}
		add(list, digest)
	}
	if r.hasUnlisted() {
		rest := r.unlistedDigest()
		part := add([]Notification{newStandIn(rest, r.Notifications[0].Cursor)}, rest)
		part.IsStandIn, part.First = true, time.Time{} // it has the whole schedule, because it may be of other accounts
	}
	return records
}

// attemptsOfPart returns the attempts for a part of the notifications, without responses, which may repeat other parts.
func (r *Record) attemptsOfPart() []Attempt {
	list := slices.Clone(r.Attempts)
	for i := range list {
		list[i].Response = ""
	}
	return list
}

// unlistedDigest returns the digest of the notifications that a digest counts, but does not list.
func (r *Record) unlistedDigest() *relay.Digest {
	rest, listed := *r.Digest, countTopics(r.Notifications)
	rest.Count, rest.Topics = 0, make(map[string]int)
	for topic, n := range r.Digest.Topics {
		if n > listed[topic] {
			rest.Topics[topic] = n - listed[topic]
			rest.Count += rest.Topics[topic]
		}
	}
	return &rest
}

func countTopics(list []Notification) map[string]int {
	counts := make(map[string]int)
	for _, n := range list {
		counts[n.Topic]++
	}
	return counts
}

// ArrivedAt returns when the oldest notification was stored in the log, or now if that is unknown.
func (r *Record) ArrivedAt(now time.Time) time.Time {
	at := now
	for _, n := range r.Notifications {
		if t := (relay.Notification{ID: n.ID, Cursor: n.Cursor}).StoredAt(); !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	return at
}

// AddAttempt appends an attempt to the history.
func (r *Record) AddAttempt(a Attempt) {
	r.AttemptCount++
	r.Attempts = append(r.Attempts, a)
}

// IsSingleUnattempted reports whether the record is one notification that was never attempted and is in no digest. A
// replay of the log creates such records.
func (r *Record) IsSingleUnattempted() bool {
	return r.Digest == nil && len(r.Attempts) == 0 && len(r.Notifications) == 1
}

// BatchID returns the ID of a batch, in the format of notification IDs. It depends only on the IDs of its notifications,
// so a replay that makes the same batch has the same ID, and receivers detect the repeat.
func BatchID(list []relay.Notification) string {
	sum := sha256.New()
	for i := range list {
		_, _ = io.WriteString(sum, list[i].ID+"\n") // never returns an error
	}
	id := sum.Sum(nil)[:12]
	binary.BigEndian.PutUint32(id, uint32(max(0, list[0].StoredAt().Unix())))
	return hex.EncodeToString(id)
}

// NextDelivery returns the delivery of the next attempt. id is that of the record.
func (r *Record) NextDelivery(id string) relay.Delivery {
	d := relay.Delivery{
		ID: id, Attempt: r.AttemptCount + 1, Digest: r.Digest, Batch: r.Batch,
		Notifications: make([]relay.Notification, len(r.Notifications)),
	}
	for i := range r.Notifications {
		d.Notifications[i] = r.Notifications[i].Decode()
	}
	if d.Batch {
		d.ID = BatchID(d.Notifications)
	}
	if d.Digest != nil {
		slices.SortStableFunc(d.Notifications, CompareCursors) // several workers and nodes fill a digest concurrently
	}
	return d
}

// CompareCursors orders notifications as the log does.
func CompareCursors(a, b relay.Notification) int { return streamid.Compare(a.Cursor, b.Cursor) }

// Decode returns the notification. Its data shares the memory of n and must not be changed, because copying the data of
// a hundred notifications costs as much as signing them.
func (n *Notification) Decode() relay.Notification {
	data := []byte{}
	if n.Data != "" {
		data = unsafe.Slice(unsafe.StringData(n.Data), len(n.Data))
	}
	return relay.Notification{
		ID: n.ID, Topic: n.Topic, Hub: n.Hub, Account: n.Account, Cursor: n.Cursor, Data: data,
	}
}

// NewDeadLetter returns the dead letter of a delivery. orderingKey is empty for an unordered sink; a replay uses it.
func NewDeadLetter(id string, r *Record, reason, orderingKey string, now time.Time) (DeadLetterEntry, error) {
	var err error
	encode := func(value any) string {
		text, e := json.Marshal(value)
		err = errors.Join(err, e)
		return string(text)
	}
	n := r.Notifications[0]
	fields := []any{
		"id", id, "event", n.ID, "cursor", n.Cursor, "topic", n.Topic, "hub", n.Hub, "account", n.Account, "data", n.Data,
		"reason", reason, "attempts", encode(r.Attempts), "time", now.UTC().Format(time.RFC3339Nano),
	}
	if orderingKey != "" {
		fields = append(fields, "key", orderingKey)
	}
	if r.Digest != nil {
		fields = append(fields, "digest", encode(r.Digest))
	}
	if r.Batch {
		fields = append(fields, "batch", "1")
	}
	if r.IsStandIn {
		fields = append(fields, "stand_in", "1")
	}
	if len(r.Notifications) > 1 {
		fields = append(fields, "notifications", encode(r.Notifications))
	}
	if err != nil {
		return DeadLetterEntry{}, fmt.Errorf("encode dead letter: %w", err)
	}
	return DeadLetterEntry{id, n.Account, fields}, nil
}

// NewUnreadableDeadLetter returns the dead letter of a record that cannot be decoded. It keeps the record unchanged.
func NewUnreadableDeadLetter(c Claim, reason string, now time.Time) DeadLetterEntry {
	return DeadLetterEntry{c.ID, "", []any{
		"id", c.ID, "topic", "", "hub", "", "account", "", "data", c.Body,
		"reason", reason, "attempts", "[]", "time", now.UTC().Format(time.RFC3339Nano),
	}}
}
