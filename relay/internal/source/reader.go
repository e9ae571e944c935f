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
func (s *session) readLoop(ctx context.Context) error {
	rejections, usedKey := 0, ""
	for ctx.Err() == nil {
		key, err := s.opt.Key()
		if err == nil {
			if key != usedKey {
				rejections = 0 // a new key may be accepted
			}
			usedKey = key
			err = s.listen(ctx, key)
		}
		if ctx.Err() != nil {
			break
		}
		if s.cursor != "" && client.IsCursorRejected(err) {
			// The stored position stays until the gap is stored before the next one, so a crash loses neither.
			s.cursor, s.gapReason = "", "the upstream rejects its own cursor: "+err.Error()
			continue
		}
		if newKey, keyErr := s.opt.Key(); keyErr == nil && newKey != usedKey {
			continue
		}
		delay := min(minRejectedWait<<min(rejections, 10), maxRejectedWait)
		delay = delay/2 + rand.N(delay/2)
		rejections++
		if s.logThrottle.allow("refused", err) {
			s.opt.Log.ErrorContext(ctx, "upstream rejects the connection", "error", shortError(err))
		}
		s.opt.Observer.SourceFailed(s.opt.Name)
		s.status.setDisconnected(stateRejected, err, delay)
		s.waitForKey(ctx, delay, usedKey)
	}
	return ctx.Err()
}

// waitForKey waits for delay, or until the key has changed.
func (s *session) waitForKey(ctx context.Context, delay time.Duration, usedKey string) {
	deadline := time.Now().Add(delay)
	for ctx.Err() == nil && time.Now().Before(deadline) {
		await.Duration(ctx, min(keyPollInterval, time.Until(deadline)))
		if newKey, err := s.opt.Key(); err == nil && newKey != usedKey {
			return
		}
	}
}

// listen forwards messages until ctx ends or an error occurs that a retry cannot fix.
func (s *session) listen(ctx context.Context, key string) error {
	httpClient, err := s.opt.HTTP()
	if err != nil {
		return err
	}
	defer httpClient.CloseIdleConnections()
	c := &client.Client{URL: s.opt.URL, Key: key, Hub: s.opt.Hub, HTTP: httpClient, UserAgent: s.opt.UserAgent}
	var callbackErr error // first error of a callback
	recordError := func(err error) {
		if callbackErr == nil {
			callbackErr = err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for n, err := range c.Listen(ctx, client.ListenOptions{
		Topics: s.opt.Topics, After: s.cursor, MaxMessage: maxMessage,
		MinBackoff: s.opt.MinPause, MaxBackoff: s.opt.MaxPause,
		OnToken:     s.checkUpstream,
		OnConnected: func() { recordError(s.onConnected(ctx)) },
		OnStart: func(cursor string) {
			s.cursor = cursor
			recordError(s.enqueue(ctx, message{cursor: cursor}))
		},
		OnSkipped: func(beginning []byte, reason error) {
			recordError(s.enqueue(ctx, message{data: beginning, rejectReason: reason.Error()}))
		},
		OnDisconnected: func(err error, pause time.Duration) {
			s.opt.Observer.SourceConnected(s.opt.Name, false)
			s.opt.Observer.SourceFailed(s.opt.Name)
			if s.logThrottle.allow("away", err) {
				s.opt.Log.WarnContext(ctx, "not connected to the upstream, retrying", "error", shortError(err))
			}
			s.status.setDisconnected(stateRetrying, err, pause)
		},
	}) {
		if callbackErr != nil {
			return callbackErr
		}
		if err != nil {
			s.opt.Observer.SourceConnected(s.opt.Name, false)
			return err
		}
		if err := s.handleMessage(ctx, n); err != nil {
			return err
		}
	}
	return callbackErr
}

// checkUpstream stores the identity of the upstream and detects a loop.
func (s *session) checkUpstream(header http.Header) error {
	s.upstreamID = header.Get(relay.IDHeader)
	if s.upstreamID != "" && s.upstreamID == s.opt.RelayID {
		return errUpstreamIsSelf
	}
	if len(s.upstreamID) > maxRelayID {
		s.upstreamID = ""
	}
	return nil
}

// onConnected handles the start of a stream. Without a cursor everything since the last connection is missing. The
// gap is stored only now: clients refetch their state after it, and would miss what happens between an earlier
// report and the start of the stream.
func (s *session) onConnected(ctx context.Context) error {
	s.opt.Observer.SourceConnected(s.opt.Name, true)
	if s.logThrottle.allow("connected", nil) {
		s.opt.Log.InfoContext(ctx, "connected to the upstream", "url", s.opt.URL, "resuming", s.cursor != "")
	}
	s.status.setConnected()
	if s.isResuming = s.cursor != ""; s.isResuming {
		return nil
	}
	m := message{relayPath: s.relayPath(nil)}
	switch {
	case s.gapReason != "":
		m.gap, m.mustReport = s.gapReason, true
	case s.wasConnected:
		m.gap = "the upstream sent no cursor, so events since the last connection are missing"
	}
	s.wasConnected, s.gapReason = true, ""
	return s.enqueue(ctx, m)
}

// handleMessage forwards a message of the stream.
func (s *session) handleMessage(ctx context.Context, n relay.Notification) error {
	if n.Topic == relay.TopicResync {
		return s.handleResync(ctx, n)
	}
	if n.Cursor == "" && !s.warnedNoCursors {
		s.warnedNoCursors = true
		s.opt.Log.WarnContext(ctx,
			"upstream sends no cursors, so events during a disconnect are lost and counted as a gap")
	}
	m := message{data: n.Data, cursor: n.Cursor, clearsCursor: n.Cursor == "", from: s.upstreamID}
	if n.Cursor == "" && s.isResuming { // it has ignored the cursor
		m.gap, m.relayPath = "the upstream no longer sends cursors, so events since the last connection are missing", s.relayPath(nil)
	}
	s.cursor, s.isResuming = n.Cursor, false
	return s.enqueue(ctx, m)
}

// handleResync handles a gap that the upstream, or a relay before it, has reported.
func (s *session) handleResync(ctx context.Context, n relay.Notification) error {
	s.cursor, s.isResuming = n.Cursor, false
	problem, via := readResync(n.Data)
	reason := "the upstream has lost events after the cursor: " + problem
	if slices.Contains(via, s.opt.RelayID) { // this relay has reported it first
		return s.enqueue(ctx, message{cursor: n.Cursor, clearsCursor: n.Cursor == ""})
	}
	return s.enqueue(ctx, message{
		cursor: n.Cursor, clearsCursor: n.Cursor == "", gap: reason, mustReport: true, relayPath: s.relayPath(via),
	})
}

// relayPath appends the upstream to the relays that a message has passed.
func (s *session) relayPath(before []string) []string {
	if s.upstreamID == "" {
		return before
	}
	return append(before, s.upstreamID)
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
