package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/time/rate"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	handshakeTimeout = 15 * time.Second
	// maxUpgradeBytes is the maximum number of bytes that a server may send before the upgrade is complete, with the messages
	// of TLS.
	maxUpgradeBytes = 256 << 10
	pingInterval    = 30 * time.Second
	// silenceTimeout is the maximum time without any data, including pings and pongs.
	silenceTimeout = 75 * time.Second
	controlTimeout = 5 * time.Second
	closeTimeout   = time.Second
	// cursorNow is the cursor of a stream that starts now. The first message then contains the cursor of its start.
	cursorNow = "now"
	// maxSkippedMessage is the maximum size of a message that is skipped because of its size, in bytes.
	maxSkippedMessage = 64 << 20
	// tryAgainLaterDelay is the minimum delay after the server closed the connection of a slow consumer with 1013.
	tryAgainLaterDelay = 2 * time.Second
	// maxTokenRejections is the number of consecutive rejections of new tokens that end Listen.
	maxTokenRejections = 3
	// maxIdleFrames is the maximum number of frames that are read per second although they yield nothing: pings, pongs, cursors and
	// invalid messages. A message counts as another one for each idleFrameSize bytes after decompression. More only cost CPU time,
	// so they wait in the connection. The connection stays open, because the same messages may follow the next one.
	maxIdleFrames = 1000
	idleFrameSize = 4 << 10
)

// ListenOptions are the options of [Client.Listen]. The zero value receives all topics. All functions may be nil.
type ListenOptions struct {
	// Topics are topic patterns.
	Topics []string
	// After is the cursor of the last notification that the caller has processed. The stream starts after it. It may also be
	// a time (RFC 3339) from which the stream starts. If it is empty, the stream starts now.
	After string
	// Metadata requests the members "id" and "time" in the data of each notification, and sets its ID. Servers that do
	// not support it send neither.
	Metadata bool
	// MaxMessage is the maximum size of a decompressed message in bytes. The default is 1 MiB. A larger message closes
	// the connection unless OnSkipped is set.
	MaxMessage int64
	// MinBackoff and MaxBackoff limit the exponential delay between two attempts. The defaults are 500 ms and 30 s. A
	// longer delay requested with Retry-After is honored up to five minutes. After a close with 1013, the delay is at
	// least two seconds or MaxBackoff.
	MinBackoff, MaxBackoff time.Duration
	// OnConnected is called after each upgrade. The stream delivers everything that the server accepts from then on.
	OnConnected func()
	// OnToken is called with the header of each response that contains a token, before the token is used. If it returns
	// an error, the sequence ends with this error.
	OnToken func(http.Header) error
	// OnStart is called with the cursor of the start of a stream that was opened without a cursor, before its first
	// notification is yielded. It is also called with the cursors that the server sends during long periods without
	// notifications. Servers without cursors never cause a call. If the stream starts again after a loss, the cursor is
	// in the hubrelay.resync notification instead. A caller therefore cannot store the cursor and miss the loss.
	OnStart func(cursor string)
	// OnSkipped is called with each message that is not a notification: its start, at most MaxMessage bytes, and the
	// error. If it is set, messages between MaxMessage and 64 MiB are skipped too, instead of closing the connection.
	// The callee owns the bytes.
	OnSkipped func(start []byte, reason error)
	// OnDisconnected is called with the reason when a connection or an attempt ended and another one follows after
	// delay.
	OnDisconnected func(err error, delay time.Duration)
}

func (o *ListenOptions) setDefaults() {
	o.MaxMessage = cmp.Or(max(o.MaxMessage, 0), 1<<20)
	o.MinBackoff = cmp.Or(max(o.MinBackoff, 0), 500*time.Millisecond)
	o.MaxBackoff = max(cmp.Or(max(o.MaxBackoff, 0), 30*time.Second), o.MinBackoff)
}

// Listen yields the notifications of c.Hub, or of the account. It gets a token for every connection and
// reconnects with growing delays until ctx ends. The sequence then ends without an error.
//
// Each connection starts after the last yielded notification, or at the start of the first connection. Nothing is
// missed or repeated while the server still stores the notifications. If it no longer does, Listen yields a
// notification with the topic hubrelay.resync in place of the lost ones, after the stream is open again. A caller that
// refetches the state then misses no later change.
//
// A permanent error is yielded last: an invalid address, 401, 403, 422 and a rejected After ([IsCursorRejected]), and before
// the first connection another 4xx, an invalid certificate, and a server without TLS at an https address. A 401 for a new
// token is permanent after three in a row. Other errors are passed to OnDisconnected, and Listen tries again: no response,
// 5xx, redirects, which are not followed, and responses that do not come from a relay, such as the page of a load balancer.
//
// Listen reads nothing while the caller processes a notification. A caller that needs longer than a minute for one
// loses the connection.
//
// The ID of yielded notifications is empty, because the stream does not contain it. Data is the received message,
// including its cursor.
func (c *Client) Listen(ctx context.Context, o ListenOptions) iter.Seq2[relay.Notification, error] {
	o.setDefaults()
	return func(yield func(relay.Notification, error) bool) {
		if _, err := c.endpointURL(notifications); err != nil {
			yield(relay.Notification{}, err)
			return
		}
		l := listener{client: c, options: o, yield: yield, cursor: o.After}
		for ctx.Err() == nil {
			err := l.streamOnce(ctx)
			if l.done || ctx.Err() != nil {
				return
			}
			if l.onTokenErr != nil {
				yield(relay.Notification{}, l.onTokenErr)
				return
			}
			if l.isStaleCursor(err) {
				l.cursor, l.gapPending = "", true
			} else if l.isPermanent(err) {
				yield(relay.Notification{}, err)
				return
			}
			l.waitRetry(ctx, err)
		}
	}
}

// listener is the state of one call of Listen across its connections.
type listener struct {
	client  *Client
	options ListenOptions
	yield   func(relay.Notification, error) bool

	cursor     string // of the last notification or, before the first, of the start; empty if unknown
	gapPending bool   // a loss is reported after the next stream has started; a refetch before that could miss changes
	done       bool   // the caller has ended the sequence
	connected  bool   // at least one connection was opened
	gotToken   bool   // the last attempt received its token
	onTokenErr error  // the error of OnToken

	tokenRejections int // consecutive rejections of new tokens
	failures        int // attempts since a connection lasted longer than the delay before it
	lastBackoff     time.Duration
}

// streamOnce opens one connection, yields its notifications, and returns the reason of its end.
func (l *listener) streamOnce(ctx context.Context) error {
	ws, err := l.connect(ctx)
	if err != nil {
		return err
	}
	l.connected, l.tokenRejections = true, 0
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		keepAlive(ctx, ws)
	}()
	defer func() {
		cancel()
		<-ended
		_ = ws.Close()
	}()
	log := l.client.logger()
	if l.client.Hub != "" {
		log = log.With("hub_id", l.client.Hub)
	}
	log.Info("connected to the stream")
	if l.options.OnConnected != nil {
		l.options.OnConnected()
	}
	startedAt := time.Now()
	err = l.read(ctx, ws)
	if time.Since(startedAt) > l.lastBackoff { // a received message is no proof: each connection may deliver just one
		l.failures = 0
	}
	return err
}

// keepAlive sends pings until ctx ends. It then sends a close frame and closes the connection.
func keepAlive(ctx context.Context, ws *websocket.Conn) {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(controlTimeout))
		case <-ctx.Done():
			frame := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
			_ = ws.WriteControl(websocket.CloseMessage, frame, time.Now().Add(closeTimeout))
			_ = ws.NetConn().Close() // makes pending reads fail
			return
		}
	}
}

func (l *listener) read(ctx context.Context, ws *websocket.Conn) error {
	limit := l.options.MaxMessage
	if l.options.OnSkipped != nil {
		limit = max(limit, maxSkippedMessage)
	}
	ws.SetReadLimit(limit)
	alive := func() { _ = ws.SetReadDeadline(time.Now().Add(silenceTimeout)) }
	idleFrames := rate.NewLimiter(maxIdleFrames, maxIdleFrames)
	waitIdle := func(size int64) error {
		for n := 1 + int(size/idleFrameSize); n > 0; n -= maxIdleFrames {
			if err := idleFrames.WaitN(ctx, min(n, maxIdleFrames)); err != nil {
				return err
			}
		}
		return nil
	}
	sendPong := ws.PingHandler()
	ws.SetPingHandler(func(data string) error {
		alive()
		return errors.Join(sendPong(data), waitIdle(0))
	})
	ws.SetPongHandler(func(string) error {
		alive()
		return waitIdle(0)
	})
	for {
		alive()
		kind, data, size, err := l.readMessage(ws, alive)
		if err != nil {
			return fmt.Errorf("read the stream: %w", err)
		}
		n, err := l.decode(kind, data, size)
		if err != nil {
			l.skipMessage(data, err)
			if err := waitIdle(size); err != nil {
				return err
			}
			continue
		}
		if n.Topic == relay.TopicCursor {
			if err := waitIdle(size); err != nil {
				return err
			}
		}
		l.cursor = n.Cursor // without one, the server cannot continue after an earlier cursor either
		if l.done = !l.deliver(n); l.done {
			return nil
		}
	}
}

// deliver yields a notification, after a resync if one is pending. It returns false if the caller has ended the
// sequence.
func (l *listener) deliver(n relay.Notification) bool {
	isCursor := n.Topic == relay.TopicCursor
	switch {
	case l.gapPending:
		l.gapPending = false
		resync := l.client.resyncNotification("")
		if isCursor {
			resync = l.client.resyncNotification(n.Cursor)
		}
		if !l.yield(resync, nil) {
			return false
		}
	case isCursor && l.options.OnStart != nil && n.Cursor != "":
		l.options.OnStart(n.Cursor)
	}
	return isCursor || l.yield(n, nil)
}

// resyncNotification returns the notification that a server sends if it cannot continue after a cursor. cursor is the
// start of the new stream, or empty if the server did not send it.
func (c *Client) resyncNotification(cursor string) relay.Notification {
	data := relay.ResyncMessage(c.Hub, "", "the relay rejects the cursor; fetch the current state")
	if cursor != "" {
		text, _ := json.Marshal(cursor) // cannot fail for a string
		data = append(append(append(data[:len(data)-1], `,"cursor":`...), text...), '}')
	}
	return relay.Notification{Topic: relay.TopicResync, Hub: c.Hub, Cursor: cursor, Data: data}
}

// isStaleCursor reports whether the server rejected a cursor that it sent itself, such as after a new installation.
func (l *listener) isStaleCursor(err error) bool {
	return IsCursorRejected(err) && l.cursor != l.options.After
}

// isPermanent reports whether another attempt cannot succeed. A new token may have expired before it was used, so one
// rejection is not permanent.
func (l *listener) isPermanent(err error) bool {
	var response *Error
	if !errors.As(err, &response) {
		var certificate *tls.CertificateVerificationError
		return !l.connected && (errors.Is(err, http.ErrSchemeMismatch) || errors.As(err, &certificate))
	}
	if IsCursorRejected(err) {
		return true
	}
	switch status := response.Status; status {
	case http.StatusUnauthorized:
		return !l.gotToken || l.tokenRejections >= maxTokenRejections
	case http.StatusForbidden, http.StatusUnprocessableEntity:
		return true
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	default:
		return status/100 == 4 && !l.connected
	}
}

// waitRetry waits before the next attempt.
func (l *listener) waitRetry(ctx context.Context, err error) {
	delay := retryDelay(l.failures, l.options.MinBackoff, l.options.MaxBackoff, rand.Float64())
	l.lastBackoff = delay
	l.failures++
	var closed *websocket.CloseError
	if errors.As(err, &closed) && closed.Code == websocket.CloseTryAgainLater {
		delay = max(delay, min(tryAgainLaterDelay+rand.N(tryAgainLaterDelay), l.options.MaxBackoff))
	}
	var response *Error
	if errors.As(err, &response) {
		delay = max(delay, min(response.RetryAfter, 5*time.Minute))
	}
	l.client.logger().Warn("stream disconnected", "error", err, "retry_in", delay.Round(time.Millisecond).String())
	if l.options.OnDisconnected != nil {
		l.options.OnDisconnected(err, delay)
	}
	await.Duration(ctx, delay)
}

// retryDelay doubles minDelay with each failure up to maxDelay. It returns between half of that delay and the whole, as
// selected by fraction, which is between 0 and 1.
func retryDelay(failures int, minDelay, maxDelay time.Duration, fraction float64) time.Duration {
	full := maxDelay
	if failures < 32 && minDelay<<failures>>failures == minDelay {
		full = min(minDelay<<failures, maxDelay)
	}
	return full/2 + time.Duration(fraction*float64(full/2))
}
