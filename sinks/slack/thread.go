package slack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	slackgo "github.com/slack-go/slack"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/prose"
)

const (
	// holdLonger is how much longer than an attempt a thread is held, so that its last word is stored.
	holdLonger = 3 * time.Second
	// settleTime is what that may take.
	settleTime = 2 * time.Second
	// takeAgain is the pause before a thread that another holds is asked for again.
	takeAgain = 100 * time.Millisecond
	// endedTTL is how long a thread that has ended is remembered, so that a repeat of its last delivery begins no other.
	endedTTL = time.Minute
	maxFirst = 150 // of what the first message said, and of its error
	maxTold  = 16
)

// thread is what is remembered of one.
type thread struct {
	To      string   `json:"to"`      // the channel as the configuration names it
	Channel string   `json:"channel"` // as Slack does, which chat.update wants
	TS      string   `json:"ts"`      // of the first message
	First   string   `json:"first"`   // what the first message said, as mrkdwn
	Last    [2]int64 `json:"last"`    // the place in the log of what the first message shows now
	Told    []string `json:"told"`    // the last deliveries that are in the thread, by which a repeat is known
	News    int      `json:"news"`    // how many came behind the first
	Bad     bool     `json:"bad"`     // something was wrong
	Ended   bool     `json:"ended"`
}

// threadOf is what the messages of one thread have in common, empty for a message that stands alone.
func threadOf(d relay.Delivery, kinds string) string {
	if t := prose.ThreadOf(d); kinds == threadAll || kinds == t.Kind {
		return t.Key
	}
	return ""
}

// inThread posts what d says: as the first message of a thread, or as a reply that brings the first message up to date. The
// thread is held meanwhile, on all nodes.
func (a *app) inThread(ctx context.Context, d relay.Delivery, m *slackgo.WebhookMessage, channel, key string) error {
	value, held, err := a.take(ctx, key)
	if err != nil {
		return err
	}
	var t thread
	fresh := value == "" || json.Unmarshal([]byte(value), &t) != nil || t.To != channel || t.Ended && !slices.Contains(t.Told, d.ID)
	if !fresh {
		if err = a.follow(ctx, &t, d, m); errors.Is(err, errThreadGone) {
			a.log.Warn("the first message of a thread is gone, so a new thread begins", "error", err)
			a.further.Add(1)
			fresh = true
		}
	}
	if fresh {
		t, err = a.begin(ctx, d, m, channel)
	}
	if t.TS == "" {
		a.settle(ctx, func(ctx context.Context) error { return held.Release(ctx) })
		return err
	}
	if err == nil {
		t.note(d)
	}
	ttl := a.ttl
	if t.Ended {
		ttl = endedTTL
	}
	text, _ := json.Marshal(&t) // texts and numbers
	a.settle(ctx, func(ctx context.Context) error { return held.Keep(ctx, string(text), ttl) })
	if err == nil {
		relay.Answered(ctx, http.StatusOK)
	}
	return err
}

// take waits until the thread is free, as long as the attempt may take.
func (a *app) take(ctx context.Context, key string) (string, relay.Held, error) {
	hold := 30 * time.Second
	if until, ok := ctx.Deadline(); ok {
		hold = max(time.Until(until), 0) + holdLonger
	}
	for {
		value, held, err := a.memory.Take(ctx, key, hold)
		if !errors.Is(err, relay.ErrTaken) {
			if err != nil {
				err = fmt.Errorf("look for the thread: %w", err)
			}
			return value, held, err
		}
		select {
		case <-ctx.Done():
			return "", nil, fmt.Errorf("wait for another message of the same thread: %w", context.Cause(ctx))
		case <-time.After(takeAgain):
		}
	}
}

// settle stores what became of a thread, also when the attempt's time is over. Where Redis is away the next delivery begins
// another thread: that is told, and loses nothing.
func (a *app) settle(ctx context.Context, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	if err := do(ctx); err != nil {
		a.log.Warn("where a thread hangs could not be stored; another may begin", "error", err)
	}
}

// begin posts the first message of a thread.
func (a *app) begin(ctx context.Context, d relay.Delivery, m *slackgo.WebhookMessage, channel string) (thread, error) {
	answer, err := a.call(ctx, methodPost, newOutgoing(channel, m))
	if err != nil {
		return thread{}, err
	}
	return thread{To: channel, Channel: answer.Channel, TS: answer.TS, First: began(a.renderer.newEvent(d.Notifications[0])), Last: place(d), Told: []string{d.ID}}, nil
}

// follow replies in the thread, unless that was done before, and makes the first message show the present state, unless it
// shows a later one.
func (a *app) follow(ctx context.Context, t *thread, d relay.Delivery, m *slackgo.WebhookMessage) error {
	replied := !slices.Contains(t.Told, d.ID)
	if replied {
		reply := newOutgoing(t.Channel, m)
		reply.ThreadTS = t.TS
		if _, err := a.call(ctx, methodPost, reply); err != nil {
			return err
		}
		t.Told = append(t.Told, d.ID)
		t.Told = t.Told[max(0, len(t.Told)-maxTold):]
		t.News++
	}
	if !later(place(d), t.Last) {
		return nil
	}
	if replied {
		a.further.Add(1)
	}
	root := newOutgoing(t.Channel, t.withHistory(m, d.Notifications[0]))
	root.TS = t.TS
	root.Text = shortened(root.Text, maxEdited, func(s string) int { return len(s) })
	if root.Blocks == nil { // what is left out would stay as it was
		root.Blocks = []any{}
	}
	if root.Attachments == nil {
		root.Attachments = []any{}
	}
	if _, err := a.call(ctx, methodUpdate, root); err != nil {
		return err
	}
	t.Last = place(d)
	return nil
}

// began says what a thread's first message says, in a line.
func began(e event) string {
	text := fit(e.headline(), maxFirst)
	if problem := code(e.Object.Error, maxFirst); problem != "" {
		text += " " + problem
	}
	if !e.at.IsZero() {
		text += " · " + clock(e.at)
	}
	return text
}

// note remembers how things stand after d, where nothing later is known.
func (t *thread) note(d relay.Delivery) {
	if place(d) == t.Last {
		t.Bad, t.Ended = t.after(d.Notifications[0])
	}
}

// after says how things stand after n: whether something is wrong or was, and whether the thread ends, since what was wrong is
// good again or the job is over.
func (t *thread) after(n relay.Notification) (wrong, ended bool) {
	e, err := n.Envelope()
	if err != nil {
		return t.Bad, t.Ended
	}
	severity, state := relay.SeverityOf(n.Topic, e.Object), strings.ToLower(strings.TrimSpace(e.Object.State))
	switch {
	case strings.HasPrefix(n.Topic, "job."):
		return severity == relay.SeverityBad, state == "completed" || state == "error" || state == "expired"
	case severity == relay.SeverityBad:
		return true, false
	case t.Bad:
		return true, severity == relay.SeverityGood || slices.Contains([]string{"running", "online", "live", "ready"}, state)
	}
	return false, false
}

// withHistory is m, which tells of n, as the first message of a thread: with a line about how it began, and in green where that
// is over and well, where its blocks are ours.
func (t *thread) withHistory(m *slackgo.WebhookMessage, n relay.Notification) *slackgo.WebhookMessage {
	count := len(m.Attachments)
	if count == 0 {
		return m
	}
	line := "Began with: " + t.First + " · 1 update below"
	if t.News > 1 {
		line = "Began with: " + t.First + " · " + strconv.Itoa(t.News) + " updates below"
	}
	out := *m
	out.Attachments = append([]slackgo.Attachment(nil), m.Attachments...)
	last := &out.Attachments[count-1]
	if t.well(n) {
		last.Color = colour(good)
	}
	last.Blocks.BlockSet = append(append([]slackgo.Block(nil), last.Blocks.BlockSet...), contextLine(line))
	return &out
}

// well tells whether n ends the thread, and not with something wrong.
func (t *thread) well(n relay.Notification) bool {
	e, err := n.Envelope()
	_, ended := t.after(n)
	return err == nil && ended && relay.SeverityOf(n.Topic, e.Object) != relay.SeverityBad && !strings.EqualFold(strings.TrimSpace(e.Object.State), "expired")
}

// place is where in the log a delivery's notification is.
func place(d relay.Delivery) [2]int64 {
	n := d.Notifications[0]
	ms, seq, _ := strings.Cut(n.Cursor, "-")
	if at, err := strconv.ParseInt(ms, 10, 64); err == nil {
		number, _ := strconv.ParseInt(seq, 10, 64)
		return [2]int64{at, number}
	}
	return [2]int64{n.Stored().UnixMilli(), 0}
}

func later(a, b [2]int64) bool { return a[0] > b[0] || a[0] == b[0] && a[1] > b[1] }
