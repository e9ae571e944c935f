package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	handshakeTimeout = 15 * time.Second
	pingInterval     = 30 * time.Second
	// silenceTimeout is how long a connection may bring nothing, pings and pongs included.
	silenceTimeout = 75 * time.Second
	controlTimeout = 5 * time.Second
	goodbyeTimeout = time.Second
	// cursorNow stands in place of a cursor for a stream that begins now, whose first message says nothing but its own.
	cursorNow = "now"
	// maxSkippedMessage bounds a message that is skipped for its size.
	maxSkippedMessage = 64 << 20
	// tryAgainLaterWait is how long at least a server is left alone that says "try again later" to a caller who was too slow.
	tryAgainLaterWait = 2 * time.Second
	// maxTokenRejections is how often in a row a fresh token may be refused before that is believed.
	maxTokenRejections = 3
)

// ListenOptions are the settings of [Client.Listen]. The zero value takes every topic.
type ListenOptions struct {
	// Topics are topic patterns.
	Topics []string
	// After is the cursor of the last notification that the caller has seen, to begin behind it; empty to begin now.
	After string
	// MaxMessage bounds one message in bytes (1 MiB), whether it came compressed or not; a larger one ends the connection,
	// unless Skipped is there.
	MaxMessage int64
	// MinBackoff and MostPause bound the exponential pause between two attempts (500 ms, 30 s). A server that names a
	// longer one (Retry-After, up to five minutes) is obeyed, and one that closes with 1013 is left alone for two seconds or
	// MostPause.
	MinBackoff, MaxBackoff time.Duration
	// OnConnected, where not nil, is called after each upgrade: what is accepted by the server from then on arrives.
	OnConnected func()
	// OnToken, where not nil, is called with the header of each answer that brought a token. An error ends the sequence with
	// it, before the token is used.
	OnToken func(http.Header) error
	// OnStart, where not nil, is called with the cursor of the place where a stream begins that was opened without one, before
	// anything of it is yielded, and with those that come where nothing was sent for long. Servers that know no cursors tell
	// none. Where the stream begins anew behind a loss, the place is the Cursor of the hubrelay.resync instead, so that whoever
	// keeps it cannot keep it without the loss.
	OnStart func(cursor string)
	// OnSkipped, where not nil, is called with each message that is none of a relay's: its beginning, at most MaxMessage bytes,
	// and what is wrong. It is told of messages larger than MaxMessage too, up to 64 MiB, instead of ending the connection; what
	// is beyond MaxMessage is read and dropped. The bytes belong to the callee.
	OnSkipped func(beginning []byte, why error)
	// OnDisconnected, where not nil, is called with the reason whenever a connection or an attempt ended and another
	// follows after pause.
	OnDisconnected func(err error, pause time.Duration)
}

func (o *ListenOptions) setDefaults() {
	o.MaxMessage = cmp.Or(max(o.MaxMessage, 0), 1<<20)
	o.MinBackoff = cmp.Or(max(o.MinBackoff, 0), 500*time.Millisecond)
	o.MaxBackoff = max(cmp.Or(max(o.MaxBackoff, 0), 30*time.Second), o.MinBackoff)
}

// Listen yields the notifications of c.Hub, or of the account pipeline, as they come. It gets a token for every
// connection and connects again, with growing pauses, until ctx ends; then the sequence ends without an error. Each
// connection begins behind the last notification that was yielded, or where the first connection began, so that nothing is
// missed or comes twice while the server has it still; where it has not, a notification of the topic hubrelay.resync comes
// in place of what is lost, once the stream is open again: who looks then at how things are misses nothing of what follows.
//
// An error that no repetition mends (an address that is none, 401, 403, 422; 4xx in general before the first connection) is the
// last thing that is yielded; a 401 for a token that was fresh counts when it comes three times in a row. What may stand between
// the two for a while is tried again for ever and told to Disconnected: no answer, 5xx, a redirect, which is not followed, and
// an answer that is not a relay's, such as a load balancer's page.
//
// Nothing is read while the caller works on a notification, so one that works for longer than a minute at a time loses its
// connection.
//
// ID is empty in what is yielded: the stream does not carry it. Data is the message as it came, its cursor included.
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
			l.backOff(ctx, err)
		}
	}
}

// listener is the state of one Listen over its connections.
type listener struct {
	client  *Client
	options ListenOptions
	yield   func(relay.Notification, error) bool

	cursor          string // of the last notification or, before that, of the beginning; empty where that is not known
	gapPending      bool   // the caller is to hear of a loss once the next stream has begun: whoever looks before that misses something
	done            bool   // the caller wants no more
	connected       bool   // at least once
	gotToken        bool   // the last attempt got its token
	tokenRejections int    // of fresh tokens, in a row
	onTokenErr      error  // what Granted said
	failures        int    // attempts since a connection held for longer than the pause before it
	lastBackoff     time.Duration
}

// streamOnce makes one connection and yields from it. It returns why that ended.
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
	l.client.logger().Info("connected to the notification stream", "hub", l.client.Hub)
	if l.options.OnConnected != nil {
		l.options.OnConnected()
	}
	since := time.Now()
	err = l.read(ws)
	if time.Since(since) > l.lastBackoff { // one message is not enough: it may be all that each connection brings
		l.failures = 0
	}
	return err
}

// keepAlive sends pings until ctx ends, then says goodbye and lets the reading end.
func keepAlive(ctx context.Context, ws *websocket.Conn) {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(controlTimeout))
		case <-ctx.Done():
			goodbye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
			_ = ws.WriteControl(websocket.CloseMessage, goodbye, time.Now().Add(goodbyeTimeout))
			_ = ws.NetConn().Close() // ends the reading
			return
		}
	}
}

func (l *listener) read(ws *websocket.Conn) error {
	limit := l.options.MaxMessage
	if l.options.OnSkipped != nil {
		limit = max(limit, maxSkippedMessage)
	}
	ws.SetReadLimit(limit)
	alive := func() { _ = ws.SetReadDeadline(time.Now().Add(silenceTimeout)) }
	answer := ws.PingHandler()
	ws.SetPingHandler(func(data string) error {
		alive()
		return answer(data)
	})
	ws.SetPongHandler(func(string) error {
		alive()
		return nil
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
			continue
		}
		if n.Cursor != "" {
			l.cursor = n.Cursor
		}
		if l.done = !l.deliver(n); l.done {
			return nil
		}
	}
}

// deliver yields a notification, behind the word of a loss where one is due. It reports false once the caller wants no more.
func (l *listener) deliver(n relay.Notification) bool {
	begins := n.Topic == relay.TopicCursor
	switch {
	case l.gapPending:
		l.gapPending = false
		lost := l.client.resyncNotification("")
		if begins {
			lost = l.client.resyncNotification(n.Cursor)
		}
		if !l.yield(lost, nil) {
			return false
		}
	case begins && l.options.OnStart != nil && n.Cursor != "":
		l.options.OnStart(n.Cursor)
	}
	return begins || l.yield(n, nil)
}

// connect gets a token and opens the websocket as spec.md shows it.
func (l *listener) connect(ctx context.Context) (*websocket.Conn, error) {
	l.gotToken = false
	token, header, err := l.client.fetchToken(ctx)
	if err != nil {
		return nil, err
	}
	if l.options.OnToken != nil {
		if l.onTokenErr = l.options.OnToken(header); l.onTokenErr != nil {
			return nil, l.onTokenErr
		}
	}
	l.gotToken = true
	address, err := l.client.endpointURL(notifications)
	if err != nil {
		return nil, err
	}
	address.Scheme = "ws" + strings.TrimPrefix(address.Scheme, "http")
	query := address.Query()
	query.Set("token", token)
	query.Set("cursor", "true")
	query.Set("after", cmp.Or(l.cursor, cursorNow))
	if len(l.options.Topics) > 0 {
		query.Set("topics", strings.Join(l.options.Topics, ","))
	}
	address.RawQuery = query.Encode()
	address.User = nil // gorilla would send it instead of the key
	sent := l.client.requestHeader()
	if isHeaderSafe(token) {
		sent.Set("x-service-token", token)
	}
	ws, response, err := l.client.dialer().DialContext(ctx, address.String(), sent)
	if err == nil {
		return ws, nil
	}
	if response == nil {
		return nil, fmt.Errorf("open the stream: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body) // of which gorilla keeps the first KiB
	answer := answerError(response, text)
	if answer.Status == http.StatusUnauthorized {
		l.tokenRejections++
	}
	return nil, fmt.Errorf("open the stream: %w", answer)
}

// isHeaderSafe says whether a header can carry the token, which is an opaque string.
func isHeaderSafe(token string) bool {
	return strings.IndexFunc(token, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

// dialer dials as the HTTP client does.
func (c *Client) dialer() *websocket.Dialer {
	d := &websocket.Dialer{
		HandshakeTimeout: handshakeTimeout, Proxy: http.ProxyFromEnvironment, Jar: c.httpClient().Jar, EnableCompression: true,
	}
	from := c.httpClient().Transport
	if from == nil {
		from = http.DefaultTransport
	}
	t, ok := from.(*http.Transport)
	if !ok {
		return d
	}
	d.Proxy, d.NetDialContext, d.NetDialTLSContext = t.Proxy, t.DialContext, t.DialTLSContext
	if t.TLSClientConfig != nil {
		d.TLSClientConfig = t.TLSClientConfig.Clone()
		d.TLSClientConfig.NextProtos = []string{"http/1.1"} // the transport adds h2, which cannot upgrade
	}
	return d
}

// resyncNotification is what a server sends where it cannot go on behind a cursor that it knows. place is where the stream begins now,
// empty where the server does not say.
func (c *Client) resyncNotification(place string) relay.Notification {
	data := relay.ResyncMessage(c.Hub, "", "the relay does not know the cursor any more; look at how things are now")
	if place != "" {
		text, _ := json.Marshal(place) // a string only
		data = append(append(append(data[:len(data)-1], `,"cursor":`...), text...), '}')
	}
	return relay.Notification{Topic: relay.TopicResync, Hub: c.Hub, Cursor: place, Data: data}
}

// isStaleCursor tells whether the server refuses the cursor that it gave itself, since it was set up anew meanwhile.
func (l *listener) isStaleCursor(err error) bool {
	var answer *Error
	return errors.As(err, &answer) && answer.Status == http.StatusUnprocessableEntity && answer.Extra["parameter"] == "after" &&
		l.cursor != l.options.After
}

// isPermanent says whether trying again is of no use. A fresh token that is refused may have expired on the way, so that
// is believed only when it happens again and again.
func (l *listener) isPermanent(err error) bool {
	var answer *Error
	if !errors.As(err, &answer) {
		return false
	}
	switch status := answer.Status; status {
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

// backOff waits before the next attempt.
func (l *listener) backOff(ctx context.Context, err error) {
	wait := backoff(l.failures, l.options.MinBackoff, l.options.MaxBackoff, rand.Float64())
	l.lastBackoff = wait
	l.failures++
	var closed *websocket.CloseError
	if errors.As(err, &closed) && closed.Code == websocket.CloseTryAgainLater {
		wait = max(wait, min(tryAgainLaterWait+rand.N(tryAgainLaterWait), l.options.MaxBackoff))
	}
	var answer *Error
	if errors.As(err, &answer) {
		wait = max(wait, min(answer.RetryAfter, 5*time.Minute))
	}
	l.client.logger().Warn("not connected to the notification stream; trying again", "error", err, "pause", wait)
	if l.options.OnDisconnected != nil {
		l.options.OnDisconnected(err, wait)
	}
	relay.Sleep(ctx, wait)
}

// backoff doubles the pause with each failure and takes between half and all of it; at is between 0 and 1.
func backoff(failures int, least, most time.Duration, at float64) time.Duration {
	full := most
	if failures < 32 && least<<failures>>failures == least {
		full = min(least<<failures, most)
	}
	return full/2 + time.Duration(at*float64(full/2))
}
