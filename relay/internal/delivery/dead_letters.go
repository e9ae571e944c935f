package delivery

import (
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
)

var (
	// ErrNoDeadLetter means that a sink has no dead letter of that delivery.
	ErrNoDeadLetter = errors.New("there is no such dead letter")
	// ErrSelection is wrapped by what is wrong with a [Selection].
	ErrSelection = errors.New("the selection of dead letters is not valid")
)

// DefaultPage and MaxPage bound a page of dead letters.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

const (
	// deadLetterPageSize is how many dead letters are read in one go. One may be as large as a notification.
	deadLetterPageSize = 100
	// scanTimeout bounds the search for one page.
	scanTimeout = 5 * time.Second
)

// DeadLetter is a delivery that will not be tried again, without what it would have delivered.
type DeadLetter struct {
	// ID is the delivery's.
	ID      string
	Topic   string
	Hub     string
	Account string
	// Time is when it became a dead letter.
	Time   time.Time
	Reason string
	// Attempts is how many were made.
	Attempts int

	entryID string // its position in the stream
}

// DeadLetterContent is a dead letter with everything that is known of it.
type DeadLetterContent struct {
	DeadLetter
	// Notifications is empty where the delivery cannot be read; Raw is what is stored then.
	Notifications []relay.Notification
	Raw           string
	// Digest is nil where the delivery is no digest.
	Digest *relay.Digest
	// Batch says that the delivery is a batch, be it of one.
	Batch   bool
	History []Attempt
}

// Selection chooses dead letters of one sink. Its zero value chooses all.
type Selection struct {
	// Topics are patterns as sinks have them; none passes every topic.
	Topics []string
	// Hub is compared whole; empty passes every hub.
	Hub string
	// Since is the earliest time of becoming a dead letter; zero is no bound.
	Since time.Time
	// After is the Next of an earlier answer, or empty.
	After string
	// Limit is the most to choose; zero means [DefaultPage] for a list, and no limit for a change.
	Limit int
}

// Page is a part of a list of dead letters, the oldest first.
type Page struct {
	Letters []DeadLetter
	// Next continues the list; it is empty at the end. A page may have few letters, or none, and a Next.
	Next string
}

// ChangeResult says what became of dead letters that were selected.
type ChangeResult struct {
	// Done is how many were replayed or dropped.
	Done int
	// Missing is how many of the ids are no dead letters, or were taken by somebody else meanwhile.
	Missing int
	// Unreadable is how many hold nothing that could be replayed; they stay.
	Unreadable int
	// Next continues a change that ended at its Limit; empty when all is done.
	Next string
}

// selectionFilter is a Selection that was found valid.
type selectionFilter struct {
	topics      relay.Patterns
	everyTopic  bool
	hub         string
	after, last string
}

func (sel *Selection) compile() (selectionFilter, error) {
	f := selectionFilter{everyTopic: len(sel.Topics) == 0, hub: sel.Hub, last: "+"}
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
	if !validPosition(after) || bounded && !validPosition(last) {
		return f, fmt.Errorf("%w: after is not the next of an earlier answer", ErrSelection)
	}
	f.after = "(" + after
	if bounded {
		f.last = last
	}
	return f, nil
}

// validPosition reports whether s is an id of a stream's entry.
func validPosition(s string) bool {
	ms, seq, ok := strings.Cut(s, "-")
	_, err1 := strconv.ParseUint(ms, 10, 64)
	_, err2 := strconv.ParseUint(seq, 10, 64)
	return ok && err1 == nil && err2 == nil
}

func (f *selectionFilter) matches(l *DeadLetter) bool {
	return (f.hub == "" || f.hub == l.Hub) && (f.everyTopic || f.topics.Match(l.Topic))
}

var (
	//go:embed scripts/deadletter_list.lua
	lettersSource string
	//go:embed scripts/index.lua
	indexSource string

	lettersScript = redis.NewScript(lettersSource)
	indexScript   = redis.NewScript(indexSource)
)

// DeadLetters lists a sink's dead letters. It looks at a bounded number of them at a time, and after five seconds
// returns what it has found. The error wraps [ErrSelection] where sel is not valid.
func (s *Store) DeadLetters(ctx context.Context, sink string, sel Selection) (Page, error) {
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
		step, err := s.readDeadLetters(ctx, sink, f.after, f.last)
		if err != nil {
			return Page{}, err
		}
		for i := range step {
			if !f.matches(&step[i]) {
				continue
			}
			page.Letters = append(page.Letters, step[i])
			if len(page.Letters) == limit {
				page.Next = step[i].entryID
				return page, nil
			}
		}
		if len(step) < deadLetterPageSize {
			return page, nil
		}
		last := step[len(step)-1].entryID
		f.after = "(" + last
		if time.Since(start) > scanTimeout {
			page.Next = last
			return page, nil
		}
	}
}

func (s *Store) readDeadLetters(ctx context.Context, sink, first, last string) ([]DeadLetter, error) {
	reply, err := lettersScript.Run(ctx, s.client, []string{s.keys.DeadLetters(sink)}, first, last, deadLetterPageSize).Slice()
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	list := make([]DeadLetter, 0, len(reply))
	for _, one := range reply {
		f, ok := one.([]any)
		if !ok || len(f) != 8 {
			return nil, fmt.Errorf("list dead letters: %w", errReply)
		}
		text := func(i int) string { v, _ := f[i].(string); return v }
		made, _ := f[7].(int64)
		l := DeadLetter{
			entryID: text(0), ID: text(1), Topic: text(2), Hub: text(3), Account: text(4), Reason: text(6), Attempts: int(made),
		}
		l.Time, _ = time.Parse(time.RFC3339Nano, text(5))
		list = append(list, l)
	}
	return list, nil
}

// DeadLetter returns the dead letter of a delivery, or [ErrNoDeadLetter].
func (s *Store) DeadLetter(ctx context.Context, sink, id string) (*DeadLetterContent, error) {
	at, err := s.entryIDs(ctx, sink, []string{id})
	if err != nil {
		return nil, err
	}
	if at[0] == "" {
		return nil, ErrNoDeadLetter
	}
	entries, err := s.client.XRange(ctx, s.keys.DeadLetters(sink), at[0], at[0]).Result()
	if err != nil {
		return nil, fmt.Errorf("read a dead letter: %w", err)
	}
	if len(entries) == 0 {
		return nil, ErrNoDeadLetter
	}
	return decodeDeadLetter(entries[0].Values), nil
}

// decodeDeadLetter reads a dead letter as far as it can be read.
func decodeDeadLetter(fields map[string]any) *DeadLetterContent {
	text := func(name string) string { v, _ := fields[name].(string); return v }
	c := &DeadLetterContent{DeadLetter: DeadLetter{
		ID: text("id"), Topic: text("topic"), Hub: text("hub"), Account: text("account"), Reason: text("reason"),
	}}
	c.Time, _ = time.Parse(time.RFC3339Nano, text("time"))
	if json.Unmarshal([]byte(text("attempts")), &c.History) != nil {
		c.History = nil
	}
	c.Attempts = len(c.History)
	if json.Unmarshal([]byte(text("digest")), &c.Digest) != nil {
		c.Digest = nil
	}
	c.Batch = text("batch") != ""
	list := []storedNotification{{ID: c.ID, Topic: c.Topic, Hub: c.Hub, Account: c.Account, Data: text("data")}}
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
		c.Notifications = append(c.Notifications, n.toNotification())
	}
	if len(c.Notifications) == 0 {
		c.Raw = text("data")
	}
	return c
}

// indexCompleteField is the member of the index that says that it holds every dead letter.
const indexCompleteField = ""

// entryIDs returns the positions of dead letters by their ids, empty for those that there are not.
func (s *Store) entryIDs(ctx context.Context, sink string, ids []string) ([]string, error) {
	at, complete, err := s.lookupIndex(ctx, sink, ids)
	if err == nil && !complete {
		if err = s.buildIndex(ctx, sink); err == nil {
			at, _, err = s.lookupIndex(ctx, sink, ids)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look for dead letters: %w", err)
	}
	return at, nil
}

// lookupIndex reads the index. It is complete where it knew every id or holds everything.
func (s *Store) lookupIndex(ctx context.Context, sink string, ids []string) (at []string, complete bool, err error) {
	values, err := s.client.HMGet(ctx, s.keys.DeadIndex(sink), append([]string{indexCompleteField}, ids...)...).Result()
	if err != nil {
		return nil, false, err
	}
	all := true
	at = make([]string, len(ids))
	for i, v := range values[1:] {
		if ids[i] != indexCompleteField {
			at[i], _ = v.(string)
		}
		all = all && at[i] != ""
	}
	return at, all || values[0] != nil, nil
}

// buildIndex takes in the dead letters that were written before there was an index.
func (s *Store) buildIndex(ctx context.Context, sink string) error {
	keys := []string{s.keys.DeadLetters(sink), s.keys.DeadIndex(sink)}
	for last := "+"; ; {
		oldest, err := indexScript.Run(ctx, s.client, keys, last, deadLetterPageSize).Text()
		if err != nil {
			return err
		}
		if oldest == "" {
			return s.client.HSet(ctx, keys[1], indexCompleteField, "complete").Err()
		}
		last = "(" + oldest
	}
}
