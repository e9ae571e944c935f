package store

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

var (
	// ErrNoDeadLetter reports that a sink has no dead letter with an ID.
	ErrNoDeadLetter = errors.New("there is no such dead letter")
	// ErrSelection is wrapped by the errors of an invalid [Selection].
	ErrSelection = errors.New("the selection of dead letters is not valid")
)

// DefaultPage and MaxPage are the default and the maximum number of dead letters on a page.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

const (
	// scanPage is the number of dead letters that are read at once. scanBytes is the number of bytes after which a read ends,
	// because Redis runs no other command during a read.
	scanPage  = 100
	scanBytes = 1 << 20
	// scanTimeout limits the search for one page.
	scanTimeout = 5 * time.Second
)

// DeadLetters stores deliveries that are not retried again.
type DeadLetters struct{ db }

// DeadLetterEntry is a new dead letter.
type DeadLetterEntry struct {
	id, account string
	fields      []any
}

// DeadLetterLimit limits the dead letters of a sink.
type DeadLetterLimit struct {
	// Max is the maximum number. 0 means no limit.
	Max int64
	// AccountShare is a percentage. Old dead letters of an account with more are dropped first. It is estimated, and counts dead
	// letters, not bytes. 0 and 100 mean that only the age matters.
	AccountShare int
}

func (l DeadLetterLimit) sharePercent() int { return cmp.Or(l.AccountShare, 100) }

// DeadLetter is a dead letter without its notifications.
type DeadLetter struct {
	// ID is that of the delivery.
	ID      string
	Topic   string
	Hub     string
	Account string
	// Time is the time of the change to a dead letter.
	Time time.Time
	// LastAttemptAt is the start of the last attempt, or Time if there was none.
	LastAttemptAt time.Time
	// Reason is permanent, exhausted or unreadable, and Error the error of the last attempt.
	Reason string
	Error  string
	// Attempts is the number of attempts.
	Attempts int
	// Event is the ID of the first event, and Status the status code of the last attempt or 0. Only lists set them.
	Event  string
	Status int

	entryID string // in the stream
}

// DeadLetterContent is a complete dead letter.
type DeadLetterContent struct {
	DeadLetter
	// Notifications is empty if the delivery cannot be decoded. Raw is then the stored text.
	Notifications []relay.Notification
	Raw           string
	// Digest is set if the delivery summarizes notifications.
	Digest *relay.Digest
	// Batch is set if the delivery is a batch, which may contain one notification.
	Batch   bool
	History []Attempt
}

// Selection selects dead letters of one sink. Its zero value selects all.
type Selection struct {
	// Topics are topic patterns. None selects every topic.
	Topics []string
	// Hub selects one hub. Empty selects every hub.
	Hub string
	// Since is the earliest time when a delivery became a dead letter. Zero means no limit.
	Since time.Time
	// NewestFirst reverses the order. Only lists may set it.
	NewestFirst bool
	// After is the Next of an earlier result, or empty.
	After string
	// Limit is the maximum number of dead letters. 0 means [DefaultPage] for a list, and no limit for a change.
	Limit int
}

// Page is a part of a list of dead letters, the oldest first unless [Selection.NewestFirst] is set.
type Page struct {
	Letters []DeadLetter
	// Next continues the list. It is empty at the end. A page with a Next may have few dead letters, or none.
	Next string
}

// selectionFilter is a compiled Selection. after and last are stream positions as XRANGE takes them.
type selectionFilter struct {
	topics      relay.Patterns
	everyTopic  bool
	hub         string
	after, last string
	newestFirst bool
}

func (sel *Selection) compile() (selectionFilter, error) {
	f := selectionFilter{everyTopic: len(sel.Topics) == 0, hub: sel.Hub, last: "+", newestFirst: sel.NewestFirst}
	if !f.everyTopic {
		var err error
		if f.topics, err = relay.ParsePatterns(sel.Topics); err != nil {
			return f, fmt.Errorf("%w: %w", ErrSelection, err)
		}
	}
	f.after = "-"
	if !sel.Since.IsZero() {
		f.after = strconv.FormatInt(max(sel.Since.UnixMilli(), 0), 10)
	}
	if sel.After == "" {
		return f, nil
	}
	after, last, bounded := strings.Cut(sel.After, "~")
	valid := isEntryID(after) && (!bounded || isEntryID(last))
	if sel.NewestFirst {
		valid = isEntryID(sel.After) && sel.After != "0-0" // nothing is before it, and Redis rejects it
	}
	if !valid {
		return f, fmt.Errorf("%w: after is not the value of next in an earlier response", ErrSelection)
	}
	f.continueAfter(after)
	if bounded {
		f.last = last
	}
	return f, nil
}

// continueAfter excludes the entries up to one that was read.
func (f *selectionFilter) continueAfter(entryID string) {
	if f.newestFirst {
		f.last = "(" + entryID
	} else {
		f.after = "(" + entryID
	}
}

// isEntryID reports whether s is a complete stream entry ID.
func isEntryID(s string) bool {
	ms, seq, ok := strings.Cut(s, "-")
	_, err1 := strconv.ParseUint(ms, 10, 64)
	_, err2 := strconv.ParseUint(seq, 10, 64)
	return ok && err1 == nil && err2 == nil
}

func (f *selectionFilter) matches(l *DeadLetter) bool {
	return (f.hub == "" || f.hub == l.Hub) && (f.everyTopic || f.topics.Match(l.Topic))
}

var (
	//go:embed scripts/dead_letters.lua
	deadLettersSource string
	//go:embed scripts/deadletter_claimed.lua
	addDeadLetterSource string
	//go:embed scripts/deadletter_list.lua
	listDeadLettersSource string

	addDeadLetterScript   = redisconn.NewScript(retryQueueSource + deadLettersSource + addDeadLetterSource)
	listDeadLettersScript = redisconn.NewScript(listDeadLettersSource)
)

// Add stores a dead letter, which replaces an earlier one of the same delivery. A claimed delivery leaves the retry
// queue; if its claim was lost, nothing changes and held is false. c.LeaseEnd is empty for a fresh delivery. If there
// are more than the limit allows, old ones are dropped.
func (d *DeadLetters) Add(
	ctx context.Context, c Claim, limit DeadLetterLimit, e DeadLetterEntry,
) (dropped int64, held bool, err error) {
	keys := d.retryKeys(c.Sink, DeadLettersKey(d.keys, c.Sink), DeadLetterIndexKey(d.keys, c.Sink))
	args := append([]any{c.ID, c.LeaseEnd, limit.Max, limit.sharePercent(), e.id, e.account}, e.fields...)
	var reply *redis.Cmd
	if c.LeaseEnd == "" {
		reply = d.runReplicated(ctx, addDeadLetterScript, keys, args...)
	} else { // all keys are on one server, and a repetition would find no claim
		reply = addDeadLetterScript.Run(ctx, d.client, keys, args...)
	}
	dropped, err = reply.Int64()
	if err != nil {
		return 0, false, redisconn.WrapError("store dead letter", err)
	}
	return max(dropped, 0), dropped >= 0, nil
}

// DeadLetterSize is the size of the dead letters of a sink.
type DeadLetterSize struct {
	Count int64
	Bytes int64 // in Redis, without their index
}

// Sizes returns the size of the dead letters of each sink.
func (d *DeadLetters) Sizes(ctx context.Context, sinks []string) ([]DeadLetterSize, error) {
	keys, counts := make([]string, len(sinks)), make([]*redis.IntCmd, len(sinks))
	_, err := d.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, sink := range sinks {
			keys[i] = DeadLettersKey(d.keys, sink)
			counts[i] = pipe.XLen(ctx, keys[i])
		}
		return nil
	})
	if err != nil {
		return nil, redisconn.WrapError("count dead letters", err)
	}
	bytes, err := redisconn.KeySizes(ctx, d.client, keys)
	if err != nil {
		return nil, err
	}
	sizes := make([]DeadLetterSize, len(sinks))
	for i := range sizes {
		sizes[i] = DeadLetterSize{Count: counts[i].Val(), Bytes: bytes[i]}
	}
	return sizes, nil
}

// List lists a sink's dead letters. After five seconds it returns what it has found. The error wraps [ErrSelection] if
// sel is invalid.
func (d *DeadLetters) List(ctx context.Context, sink string, sel Selection) (Page, error) {
	f, err := sel.compile()
	if err != nil {
		return Page{}, err
	}
	limit := sel.Limit
	if limit <= 0 {
		limit = DefaultPage
	}
	limit = min(limit, MaxPage)
	page := Page{Letters: []DeadLetter{}}
	for start := time.Now(); ; {
		scanned, more, err := d.readPage(ctx, sink, &f)
		if err != nil {
			return Page{}, err
		}
		for i := range scanned {
			if !f.matches(&scanned[i]) {
				continue
			}
			page.Letters = append(page.Letters, scanned[i])
			if len(page.Letters) == limit {
				page.Next = scanned[i].entryID
				return page, nil
			}
		}
		if !more {
			return page, nil
		}
		last := scanned[len(scanned)-1].entryID
		f.continueAfter(last)
		if time.Since(start) > scanTimeout {
			page.Next = last
			return page, nil
		}
	}
}

// readPage reads dead letters. If there may be more, it returns at least one.
func (d *DeadLetters) readPage(
	ctx context.Context, sink string, f *selectionFilter,
) (list []DeadLetter, more bool, err error) {
	command, first, last := "XRANGE", f.after, f.last
	if f.newestFirst {
		command, first, last = "XREVRANGE", f.last, f.after
	}
	keys := []string{DeadLettersKey(d.keys, sink)}
	reply, err := listDeadLettersScript.Run(ctx, d.client, keys, command, first, last, scanPage, scanBytes).Slice()
	if err != nil {
		return nil, false, redisconn.WrapError("list dead letters", err)
	}
	if len(reply) == 0 {
		return nil, false, fmt.Errorf("list dead letters: %w", errReply)
	}
	for _, one := range reply[1:] {
		f, ok := one.([]any)
		if !ok || len(f) != 11 {
			return nil, false, fmt.Errorf("list dead letters: %w", errReply)
		}
		text := func(i int) string { v, _ := f[i].(string); return v }
		number := func(i int) int { v, _ := f[i].(int64); return int(v) }
		l := DeadLetter{
			entryID: text(0), ID: text(1), Topic: text(2), Hub: text(3), Account: text(4), Attempts: number(7), Status: number(8),
			Event: text(9),
		}
		l.Reason, l.Error = splitReason(text(6))
		l.Time, _ = time.Parse(time.RFC3339Nano, text(5))
		l.LastAttemptAt, _ = time.Parse(time.RFC3339Nano, text(10))
		list = append(list, l)
	}
	return list, reply[0] == int64(1), nil
}

// Get returns the dead letter of a delivery, or [ErrNoDeadLetter].
func (d *DeadLetters) Get(ctx context.Context, sink, id string) (*DeadLetterContent, error) {
	at, err := d.entryIDs(ctx, sink, []string{id})
	if err != nil {
		return nil, err
	}
	if at[0] == "" {
		return nil, ErrNoDeadLetter
	}
	entries, err := d.client.XRange(ctx, DeadLettersKey(d.keys, sink), at[0], at[0]).Result()
	if err != nil {
		return nil, redisconn.WrapError("read dead letter", err)
	}
	if len(entries) == 0 {
		return nil, ErrNoDeadLetter
	}
	return decodeDeadLetter(entries[0].Values), nil
}

// splitReason splits the stored reason, which is a word and the error. Another program may have stored only one of them.
func splitReason(text string) (reason, err string) {
	reason, err, _ = strings.Cut(text, ": ")
	if strings.Contains(reason, " ") {
		return "", text
	}
	return reason, err
}

// decodeDeadLetter decodes as much of a dead letter as possible.
func decodeDeadLetter(fields map[string]any) *DeadLetterContent {
	text := func(name string) string { v, _ := fields[name].(string); return v }
	c := &DeadLetterContent{DeadLetter: DeadLetter{
		ID: text("id"), Topic: text("topic"), Hub: text("hub"), Account: text("account"),
	}}
	c.Reason, c.Error = splitReason(text("reason"))
	c.Time, _ = time.Parse(time.RFC3339Nano, text("time"))
	if json.Unmarshal([]byte(text("attempts")), &c.History) != nil {
		c.History = nil
	}
	c.Attempts, c.LastAttemptAt = len(c.History), c.Time
	if n := len(c.History); n > 0 && !c.History[n-1].Time.IsZero() {
		c.LastAttemptAt = c.History[n-1].Time
	}
	if json.Unmarshal([]byte(text("digest")), &c.Digest) != nil {
		c.Digest = nil
	}
	c.Batch = text("batch") != ""
	list := []Notification{{
		ID: cmp.Or(text("event"), c.ID), Topic: c.Topic, Hub: c.Hub, Account: c.Account, Cursor: text("cursor"), Data: text("data"),
	}}
	if all := text("notifications"); all != "" {
		list = nil
		if json.Unmarshal([]byte(all), &list) != nil {
			list = nil
		}
	}
	for _, n := range list {
		if !json.Valid([]byte(n.Data)) {
			c.Notifications = nil
			break
		}
		c.Notifications = append(c.Notifications, n.Decode())
	}
	if len(c.Notifications) == 0 {
		c.Raw = text("data")
	}
	return c
}

// entryIDs returns the stream entry IDs of dead letters by delivery IDs, empty for unknown ones.
func (d *DeadLetters) entryIDs(ctx context.Context, sink string, ids []string) ([]string, error) {
	values, err := d.client.HMGet(ctx, DeadLetterIndexKey(d.keys, sink), ids...).Result()
	if err != nil {
		return nil, redisconn.WrapError("look up dead letters", err)
	}
	at := make([]string, len(ids))
	for i, v := range values {
		value, _ := v.(string)
		at[i], _, _ = strings.Cut(value, " ") // the account follows
	}
	return at, nil
}
