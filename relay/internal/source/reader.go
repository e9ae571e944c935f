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

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

const (
	// minRejectedWait and refusedMax bound the pause after what no repetition mends but an operator may: a wrong key, a wrong
	// address.
	minRejectedWait = 5 * time.Second
	maxRejectedWait = 2 * time.Minute
	// keyPollInterval is how often another key is looked for meanwhile.
	keyPollInterval = time.Second
)

// InstanceHeader is the header of a token's answer that names the relay which gives it.
const InstanceHeader = "Hubrelay-Instance"

// errUpstreamIsSelf ends a circle of one.
var errUpstreamIsSelf = errors.New("the upstream is this relay itself: whatever it sent would come back; give the source another url")

// read reads the upstream until ctx ends.
func (t *session) read(ctx context.Context) error {
	refusals, used := 0, ""
	for ctx.Err() == nil {
		key, err := t.opt.Key()
		if err == nil {
			if key != used {
				refusals = 0 // another key deserves another try
			}
			used = key
			err = t.listen(ctx, key)
		}
		if ctx.Err() != nil {
			break
		}
		if t.isStaleCursor(err) {
			// The place that is stored stays until the gap stands before the next one, so that a kill forgets neither.
			t.cursor, t.gapReason = "", "the upstream does not know the place any more: "+err.Error()
			continue
		}
		if fresh, keyErr := t.opt.Key(); keyErr == nil && fresh != used {
			continue
		}
		wait := min(minRejectedWait<<min(refusals, 10), maxRejectedWait)
		wait = wait/2 + rand.N(wait/2)
		refusals++
		if t.logThrottle.allow("refused", err) {
			t.opt.Log.ErrorContext(ctx, "the upstream cannot be read until somebody mends this", "error", shortError(err))
		}
		t.opt.Observer.SourceFailed(t.opt.Name)
		t.status.setDisconnected(stateRefused, err, wait)
		t.waitForKey(ctx, wait, used)
	}
	return ctx.Err()
}

// waitForKey waits, for less where the key changes.
func (t *session) waitForKey(ctx context.Context, wait time.Duration, used string) {
	until := time.Now().Add(wait)
	for ctx.Err() == nil && time.Now().Before(until) {
		relay.Sleep(ctx, min(keyPollInterval, time.Until(until)))
		if fresh, err := t.opt.Key(); err == nil && fresh != used {
			return
		}
	}
}

// listen hands on what comes until ctx ends or an error comes that no repetition mends.
func (t *session) listen(ctx context.Context, key string) error {
	httpClient, err := t.opt.HTTP()
	if err != nil {
		return err
	}
	defer httpClient.CloseIdleConnections()
	c := &client.Client{URL: t.opt.URL, Key: key, Hub: t.opt.Hub, HTTP: httpClient, UserAgent: t.opt.UserAgent}
	var failed error // of a callback
	do := func(err error) {
		if failed == nil {
			failed = err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for n, err := range c.Listen(ctx, client.ListenOptions{
		Topics: t.opt.Topics, After: t.cursor, MaxMessage: maxMessage,
		MinBackoff: t.opt.MinPause, MaxBackoff: t.opt.MaxPause,
		OnToken:     t.checkUpstream,
		OnConnected: func() { do(t.onConnected(ctx)) },
		OnStart: func(cursor string) {
			t.cursor = cursor
			do(t.enqueue(ctx, message{cursor: cursor}))
		},
		OnSkipped: func(beginning []byte, why error) {
			do(t.enqueue(ctx, message{data: beginning, rejectReason: why.Error()}))
		},
		OnDisconnected: func(err error, pause time.Duration) {
			t.opt.Observer.SourceConnected(t.opt.Name, false)
			t.opt.Observer.SourceFailed(t.opt.Name)
			if t.logThrottle.allow("away", err) {
				t.opt.Log.WarnContext(ctx, "not connected to the upstream, trying again", "error", shortError(err))
			}
			t.status.setDisconnected(stateWaiting, err, pause)
		},
	}) {
		if failed != nil {
			return failed
		}
		if err != nil {
			t.opt.Observer.SourceConnected(t.opt.Name, false)
			return err
		}
		if err := t.handleMessage(ctx, n); err != nil {
			return err
		}
	}
	return failed
}

// checkUpstream looks who the upstream is.
func (t *session) checkUpstream(header http.Header) error {
	t.upstreamID = header.Get(InstanceHeader)
	if t.upstreamID != "" && t.upstreamID == t.opt.Instance {
		return errUpstreamIsSelf
	}
	if len(t.upstreamID) > 64 {
		t.upstreamID = ""
	}
	return nil
}

// onConnected notes that the stream has begun. Without a cursor whatever came since the last connection is missing. The gap is
// stored only now: who is told of it looks at how things are, and would miss what came between that and the stream.
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
		m.gap, m.gapReported = t.gapReason, true
	case t.wasConnected:
		m.gap = "the upstream gave no cursor, so what it sent while nobody was connected is missing"
	}
	t.wasConnected, t.gapReason = true, ""
	return t.enqueue(ctx, m)
}

// handleMessage hands on what the stream has brought.
func (t *session) handleMessage(ctx context.Context, n relay.Notification) error {
	if n.Topic == relay.TopicResync {
		return t.handleResync(ctx, n)
	}
	if n.Cursor == "" && !t.warnedNoCursors {
		t.warnedNoCursors = true
		t.opt.Log.WarnContext(ctx, "the upstream knows no cursors: what it sends while this relay is not connected is missed, and counted as a gap")
	}
	if n.Cursor != "" {
		t.cursor = n.Cursor
	}
	return t.enqueue(ctx, message{data: n.Data, cursor: n.Cursor, from: t.upstreamID})
}

// handleResync takes in that the upstream has lost something, or one of those before it.
func (t *session) handleResync(ctx context.Context, n relay.Notification) error {
	t.cursor = n.Cursor
	problem, via := readResync(n.Data)
	why := "the upstream has lost what came behind the place: " + problem
	if slices.Contains(via, t.opt.Instance) { // this relay was the first to know
		return t.enqueue(ctx, message{cursor: n.Cursor})
	}
	return t.enqueue(ctx, message{cursor: n.Cursor, gap: why, gapReported: true, relayPath: t.relayPath(via)})
}

// relayPath adds the upstream to the relays that something has come through.
func (t *session) relayPath(before []string) []string {
	if t.upstreamID == "" {
		return before
	}
	return append(before, t.upstreamID)
}

// isStaleCursor tells whether the upstream refuses the cursor that it gave.
func (t *session) isStaleCursor(err error) bool {
	var answer *client.Error
	return errors.As(err, &answer) && answer.Status == http.StatusUnprocessableEntity && answer.Extra["parameter"] == "after" &&
		t.cursor != ""
}

// maxVia bounds how many relays are listed, as for notifications.
const maxVia = 16

func readResync(data []byte) (why string, via []string) {
	var resync struct {
		Object struct{ Error string }
		Via    []string `json:"hubrelay_via"`
	}
	if json.Unmarshal(data, &resync) != nil || resync.Object.Error == "" {
		return "it does not say why", nil
	}
	return fmt.Sprintf("%q", relay.Truncate(resync.Object.Error, 300)), resync.Via[:min(len(resync.Via), maxVia)]
}
