package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

const (
	// minRejectedWait and maxRejectedWait limit the delay after an error that an operator must fix, such as a wrong
	// key or address.
	minRejectedWait = 5 * time.Second
	maxRejectedWait = 2 * time.Minute
	// keyPollInterval is the time between checks for a new key during this delay.
	keyPollInterval = time.Second
)

// errUpstreamIsSelf reports a loop of one relay.
var errUpstreamIsSelf = errors.New("the upstream is this relay itself; change the url of the source")

// readLoop reads the upstream until ctx ends.
func (t *session) readLoop(ctx context.Context) error {
	rejections, usedKey := 0, ""
	for ctx.Err() == nil {
		key, err := t.opt.Key()
		if err == nil {
			if key != usedKey {
				rejections = 0 // a new key may be accepted
			}
			usedKey = key
			err = t.listen(ctx, key)
		}
		if ctx.Err() != nil {
			break
		}
		if t.isStaleCursor(err) {
			// The stored position stays until the gap is stored before the next one, so a crash loses neither.
			t.cursor, t.gapReason = "", "the upstream no longer knows the cursor: "+err.Error()
			continue
		}
		if newKey, keyErr := t.opt.Key(); keyErr == nil && newKey != usedKey {
			continue
		}
		delay := min(minRejectedWait<<min(rejections, 10), maxRejectedWait)
		delay = delay/2 + rand.N(delay/2)
		rejections++
		if t.logThrottle.allow("refused", err) {
			t.opt.Log.ErrorContext(ctx, "upstream rejects the connection", "error", shortError(err))
		}
		t.opt.Observer.SourceFailed(t.opt.Name)
		t.status.setDisconnected(stateRejected, err, delay)
		t.waitForKey(ctx, delay, usedKey)
	}
	return ctx.Err()
}

// waitForKey waits for delay, or until the key has changed.
func (t *session) waitForKey(ctx context.Context, delay time.Duration, usedKey string) {
	deadline := time.Now().Add(delay)
	for ctx.Err() == nil && time.Now().Before(deadline) {
		await.Duration(ctx, min(keyPollInterval, time.Until(deadline)))
		if newKey, err := t.opt.Key(); err == nil && newKey != usedKey {
			return
		}
	}
}

// listen forwards messages until ctx ends or an error occurs that a retry cannot fix.
func (t *session) listen(ctx context.Context, key string) error {
	httpClient, err := t.opt.HTTP()
	if err != nil {
		return err
	}
	defer httpClient.CloseIdleConnections()
	c := &client.Client{URL: t.opt.URL, Key: key, Hub: t.opt.Hub, HTTP: httpClient, UserAgent: t.opt.UserAgent}
	var callbackErr error // first error of a callback
	recordError := func(err error) {
		if callbackErr == nil {
			callbackErr = err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for n, err := range c.Listen(ctx, client.ListenOptions{
		Topics: t.opt.Topics, After: t.cursor, MaxMessage: maxMessage,
		MinBackoff: t.opt.MinPause, MaxBackoff: t.opt.MaxPause,
		OnToken:     t.checkUpstream,
		OnConnected: func() { recordError(t.onConnected(ctx)) },
		OnStart: func(cursor string) {
			t.cursor = cursor
			recordError(t.enqueue(ctx, message{cursor: cursor}))
		},
		OnSkipped: func(beginning []byte, reason error) {
			recordError(t.enqueue(ctx, message{data: beginning, rejectReason: reason.Error()}))
		},
		OnDisconnected: func(err error, pause time.Duration) {
			t.opt.Observer.SourceConnected(t.opt.Name, false)
			t.opt.Observer.SourceFailed(t.opt.Name)
			if t.logThrottle.allow("away", err) {
				t.opt.Log.WarnContext(ctx, "not connected to the upstream, retrying", "error", shortError(err))
			}
			t.status.setDisconnected(stateRetrying, err, pause)
		},
	}) {
		if callbackErr != nil {
			return callbackErr
		}
		if err != nil {
			t.opt.Observer.SourceConnected(t.opt.Name, false)
			return err
		}
		if err := t.handleMessage(ctx, n); err != nil {
			return err
		}
	}
	return callbackErr
}

// checkUpstream stores the identity of the upstream and detects a loop.
func (t *session) checkUpstream(header http.Header) error {
	t.upstreamID = header.Get(relay.IDHeader)
	if t.upstreamID != "" && t.upstreamID == t.opt.RelayID {
		return errUpstreamIsSelf
	}
	if len(t.upstreamID) > maxRelayID {
		t.upstreamID = ""
	}
	return nil
}

// onConnected handles the start of a stream. Without a cursor everything since the last connection is missing. The
// gap is stored only now: clients refetch their state after it, and would miss what happens between an earlier
// report and the start of the stream.
func (t *session) onConnected(ctx context.Context) error {
	t.opt.Observer.SourceConnected(t.opt.Name, true)
	if t.logThrottle.allow("connected", nil) {
		t.opt.Log.InfoContext(ctx, "connected to the upstream", "url", t.opt.URL, "resuming", t.cursor != "")
	}
	t.status.setConnected()
	if t.cursor != "" {
		return nil
	}
	m := message{relayPath: t.relayPath(nil)}
	switch {
	case t.gapReason != "":
		m.gap, m.mustReport = t.gapReason, true
	case t.wasConnected:
		m.gap = "the upstream sent no cursor, so events since the last connection are missing"
	}
	t.wasConnected, t.gapReason = true, ""
	return t.enqueue(ctx, m)
}

// handleMessage forwards a message of the stream.
func (t *session) handleMessage(ctx context.Context, n relay.Notification) error {
	if n.Topic == relay.TopicResync {
		return t.handleResync(ctx, n)
	}
	if n.Cursor == "" && !t.warnedNoCursors {
		t.warnedNoCursors = true
		t.opt.Log.WarnContext(ctx,
			"upstream sends no cursors, so events during a disconnect are lost and counted as a gap")
	}
	if n.Cursor != "" {
		t.cursor = n.Cursor
	}
	return t.enqueue(ctx, message{data: n.Data, cursor: n.Cursor, from: t.upstreamID})
}

// handleResync handles a gap that the upstream, or a relay before it, has reported.
func (t *session) handleResync(ctx context.Context, n relay.Notification) error {
	t.cursor = n.Cursor
	problem, via := readResync(n.Data)
	reason := "the upstream has lost events after the cursor: " + problem
	if slices.Contains(via, t.opt.RelayID) { // this relay has reported it first
		return t.enqueue(ctx, message{cursor: n.Cursor})
	}
	return t.enqueue(ctx, message{cursor: n.Cursor, gap: reason, mustReport: true, relayPath: t.relayPath(via)})
}

// relayPath appends the upstream to the relays that a message has passed.
func (t *session) relayPath(before []string) []string {
	if t.upstreamID == "" {
		return before
	}
	return append(before, t.upstreamID)
}

// isStaleCursor reports whether the upstream rejects its own cursor.
func (t *session) isStaleCursor(err error) bool {
	var apiErr *client.Error
	return errors.As(err, &apiErr) && apiErr.Status == http.StatusUnprocessableEntity &&
		apiErr.Extra["parameter"] == "after" &&
		t.cursor != ""
}

// maxVia is the maximum number of listed relays, as for notifications. IDs of more than maxRelayID bytes are dropped; the ID of a
// relay has 16.
const maxVia, maxRelayID = 16, 64

func readResync(data []byte) (reason string, via []string) {
	var resync struct {
		Object struct{ Error string }
		Via    []string `json:"hubrelay_via"`
	}
	if json.Unmarshal(data, &resync) != nil || resync.Object.Error == "" {
		return "no reason given", nil
	}
	via = slices.DeleteFunc(resync.Via, func(id string) bool { return len(id) > maxRelayID })
	return fmt.Sprintf("%q", relay.Truncate(resync.Object.Error, 300)), via[:min(len(via), maxVia)]
}
