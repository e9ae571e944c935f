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

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/message"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	// lockMargin is added to the time of an attempt for the lock of a thread, so its state can be stored.
	lockMargin = 3 * time.Second
	// settleTime is the maximum time to store the state.
	settleTime = 2 * time.Second
	// lockRetryInterval is the pause between attempts to lock a thread.
	lockRetryInterval = 100 * time.Millisecond
	// endedTTL is the time for which an ended thread is stored, so a repeat of its last delivery starts no new thread.
	endedTTL        = time.Minute
	maxFirst        = 150 // of the texts in the first message
	maxDeliveredIDs = 16
)

// threadState is the stored state of a thread.
type threadState struct {
	To           string   `json:"to"`      // the channel in the configuration
	Channel      string   `json:"channel"` // the channel's ID, which chat.update requires
	TS           string   `json:"ts"`      // of the first message
	FirstText    string   `json:"first"`   // original text of the first message, as mrkdwn
	LastPosition [2]int64 `json:"last"`    // log position of the state in the first message
	DeliveredIDs []string `json:"told"`    // IDs of the last deliveries in the thread, to detect repeats
	ReplyCount   int      `json:"news"`    // number of replies
	HasProblem   bool     `json:"bad"`     // the thread had a problem
	Ended        bool     `json:"ended"`
}

// threadOf returns the thread of a delivery, or an empty string for a separate message.
func threadOf(d relay.Delivery, kinds string) string {
	if t := message.ThreadOf(d); kinds == threadAll || kinds == t.Kind {
		return t.Key
	}
	return ""
}

// postInThread posts d as the first message of a thread, or as a reply that updates the first message. It holds the
// lock of the thread on all nodes.
func (a *appSink) postInThread(
	ctx context.Context, d relay.Delivery, m *slackgo.WebhookMessage, channel, key string,
) error {
	value, held, err := a.lockThread(ctx, key)
	if err != nil {
		return err
	}
	var t threadState
	fresh := value == "" || json.Unmarshal([]byte(value),
		&t) != nil || t.To != channel || t.Ended && !slices.Contains(t.DeliveredIDs, d.ID)
	if !fresh {
		if err = a.replyInThread(ctx, &t, d, m); errors.Is(err, errThreadGone) {
			a.log.Warn("first message of a thread is gone, starting a new thread", "error", err)
			a.countRequests(1)
			fresh = true
		}
	}
	if fresh {
		t, err = a.startThread(ctx, d, m, channel)
	}
	if t.TS == "" {
		a.saveThread(ctx, func(ctx context.Context) error { return held.Release(ctx) })
		return err
	}
	if err == nil {
		t.updateAfter(d)
	}
	ttl := a.ttl
	if t.Ended {
		ttl = endedTTL
	}
	text, _ := json.Marshal(&t) // strings and numbers can be encoded
	a.saveThread(ctx, func(ctx context.Context) error { return held.Save(ctx, string(text), ttl) })
	if err == nil {
		relay.ReportStatus(ctx, http.StatusOK)
	}
	return err
}

// lockThread waits until the thread is free, at most until the end of the attempt.
func (a *appSink) lockThread(ctx context.Context, key string) (string, relay.StateLock, error) {
	hold := 30 * time.Second
	if until, ok := ctx.Deadline(); ok {
		hold = max(time.Until(until), 0) + lockMargin
	}
	for {
		value, held, err := a.memory.Lock(ctx, key, hold)
		if !errors.Is(err, relay.ErrLocked) {
			if err != nil {
				err = fmt.Errorf("load the thread: %w", err)
			}
			return value, held, err
		}
		if !await.Duration(ctx, lockRetryInterval) {
			return "", nil, fmt.Errorf("wait for another message of the same thread: %w", context.Cause(ctx))
		}
	}
}

// saveThread stores the state of a thread, even after the end of the attempt. If Redis is unreachable, the next
// delivery starts another thread. That is logged and loses nothing.
func (a *appSink) saveThread(ctx context.Context, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	if err := do(ctx); err != nil {
		a.log.Warn("state of a thread could not be stored, a new thread may start", "error", err)
	}
}

// startThread posts the first message of a thread.
func (a *appSink) startThread(
	ctx context.Context, d relay.Delivery, m *slackgo.WebhookMessage, channel string,
) (threadState, error) {
	response, err := a.callMethod(ctx, methodPost, newOutgoing(channel, m))
	if err != nil {
		return threadState{}, err
	}
	return threadState{
		To: channel, Channel: response.Channel, TS: response.TS,
		FirstText: openingLine(a.renderer.newEvent(d.Notifications[0])), LastPosition: logPosition(d),
		DeliveredIDs: []string{d.ID},
	}, nil
}

// replyInThread replies in the thread, unless that was done before. It then shows the current state in the first
// message, unless that shows a later one.
func (a *appSink) replyInThread(
	ctx context.Context, t *threadState, d relay.Delivery, m *slackgo.WebhookMessage,
) error {
	replied := !slices.Contains(t.DeliveredIDs, d.ID)
	if replied {
		reply := newOutgoing(t.Channel, m)
		reply.ThreadTS = t.TS
		if _, err := a.callMethod(ctx, methodPost, reply); err != nil {
			return err
		}
		t.DeliveredIDs = append(t.DeliveredIDs, d.ID)
		t.DeliveredIDs = t.DeliveredIDs[max(0, len(t.DeliveredIDs)-maxDeliveredIDs):]
		t.ReplyCount++
	}
	if !isLater(logPosition(d), t.LastPosition) {
		return nil
	}
	if replied {
		a.countRequests(1)
	}
	root := newOutgoing(t.Channel, t.withHistory(m, d.Notifications[0]))
	root.TS = t.TS
	root.Text = truncateMarkdown(root.Text, maxEdited, func(s string) int { return len(s) })
	if root.Blocks == nil { // Slack keeps the old blocks without this field
		root.Blocks = []any{}
	}
	if root.Attachments == nil {
		root.Attachments = []any{}
	}
	if _, err := a.callMethod(ctx, methodUpdate, root); err != nil {
		return err
	}
	t.LastPosition = logPosition(d)
	return nil
}

// openingLine returns the text of the first message of a thread as one line.
func openingLine(e event) string {
	text := escapeAndTruncate(e.headlineText(), maxFirst)
	if problem := formatCode(e.Object.Error, maxFirst); problem != "" {
		text += " " + problem
	}
	if !e.at.IsZero() {
		text += " · " + formatTime(e.at)
	}
	return text
}

// updateAfter stores the state after d, unless a later one is known.
func (t *threadState) updateAfter(d relay.Delivery) {
	if logPosition(d) == t.LastPosition {
		t.HasProblem, t.Ended = t.stateAfter(d.Notifications[0])
	}
}

// stateAfter returns the state after n: whether there is or was a problem, and whether the thread ends because the
// problem is resolved or the job has ended.
func (t *threadState) stateAfter(n relay.Notification) (wrong, ended bool) {
	e, err := n.Envelope()
	if err != nil {
		return t.HasProblem, t.Ended
	}
	severity, state := relay.SeverityOf(n.Topic, e.Object), strings.ToLower(strings.TrimSpace(e.Object.State))
	switch {
	case strings.HasPrefix(n.Topic, "job."):
		return severity == relay.SeverityBad, state == "completed" || state == "error" || state == "expired"
	case severity == relay.SeverityBad:
		return true, false
	case t.HasProblem:
		return true, severity == relay.SeverityGood ||
			slices.Contains([]string{"running", "online", "live", "ready"}, state)
	}
	return false, false
}

// withHistory returns m as the first message of a thread: with a line about its start, and in green if it ended well
// and the sink renders the blocks.
func (t *threadState) withHistory(m *slackgo.WebhookMessage, n relay.Notification) *slackgo.WebhookMessage {
	count := len(m.Attachments)
	if count == 0 {
		return m
	}
	line := "Began with: " + t.FirstText + " · 1 update below"
	if t.ReplyCount > 1 {
		line = "Began with: " + t.FirstText + " · " + strconv.Itoa(t.ReplyCount) + " updates below"
	}
	out := *m
	out.Attachments = append([]slackgo.Attachment(nil), m.Attachments...)
	last := &out.Attachments[count-1]
	if t.endsResolved(n) {
		last.Color = severityColor(good)
	}
	last.Blocks.BlockSet = append(append([]slackgo.Block(nil), last.Blocks.BlockSet...), contextLine(line))
	return &out
}

// endsResolved reports whether n ends the thread without a problem.
func (t *threadState) endsResolved(n relay.Notification) bool {
	e, err := n.Envelope()
	_, ended := t.stateAfter(n)
	return err == nil && ended && relay.SeverityOf(n.Topic, e.Object) != relay.SeverityBad &&
		!strings.EqualFold(strings.TrimSpace(e.Object.State), "expired")
}

// logPosition returns the log position of a notification.
func logPosition(d relay.Delivery) [2]int64 {
	n := d.Notifications[0]
	ms, seq, _ := strings.Cut(n.Cursor, "-")
	if at, err := strconv.ParseInt(ms, 10, 64); err == nil {
		number, _ := strconv.ParseInt(seq, 10, 64)
		return [2]int64{at, number}
	}
	return [2]int64{n.StoredAt().UnixMilli(), 0}
}

func isLater(a, b [2]int64) bool { return a[0] > b[0] || a[0] == b[0] && a[1] > b[1] }
