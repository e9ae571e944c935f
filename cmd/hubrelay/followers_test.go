package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

// followerKind makes one connection of a follower and returns why that ended.
type followerKind struct {
	name       string
	streamType string // in the list of connections
	connect    func(*follower, context.Context) error
}

var followerKinds = []followerKind{
	{"the Go client", "websocket", (*follower).listen},
	{"a websocket", "websocket", (*follower).socket},
	{"an event stream", "sse", (*follower).eventsByKey},
	{"an event stream by a token", "sse", (*follower).eventsByToken},
}

// ledger records what a follower receives. One goroutine at a time calls its methods.
type ledger interface {
	// begin sets the cursor of the start position.
	begin(cursor string)
	// take records a message with its cursor. It returns an error if the relay made a mistake.
	take(m message, cursor string) error
}

// message contains the members of a notification that the tests use.
type message struct {
	Topic, Cursor string
	Object        struct{ ID, Error string }
	Context       struct {
		HubID string `json:"hub_id"`
	}
}

// follower follows a stream over many connections to any node. Each connection resumes after the last one.
type follower struct {
	followerKind
	name    string
	address string
	hub     string // empty for the account stream
	topics  string
	random  *rand.Rand
	client  *http.Client
	cancel  context.CancelFunc
	done    chan struct{}
	// forgetful is set if the relay may lose tokens because its Redis loses data.
	forgetful bool
	// brisk followers keep connections longer and are never slow.
	brisk bool
	// kept is the token of an event stream.
	kept    string
	barrier barrier

	mu          sync.Mutex
	ledger      ledger
	began       bool
	cursor      string
	connections int
	tooSlow     int // connections that were closed with 1013
	wrong       error
}

func newFollower(kind int, address, hub, topics string, book ledger, random *rand.Rand) *follower {
	return &follower{
		followerKind: followerKinds[kind], address: address, hub: hub, topics: topics, ledger: book, random: random,
		done:   make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		name:   fmt.Sprintf("%s of %q with topics %q", followerKinds[kind].name, hub, topics),
	}
}

// start follows after begin is closed. With nil it starts immediately.
func (f *follower) start(begin <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	go func() {
		defer close(f.done)
		if begin != nil {
			select {
			case <-begin:
			case <-ctx.Done():
			}
		}
		for ctx.Err() == nil {
			pause := time.Duration(f.random.IntN(100)) * time.Millisecond
			if err := f.connect(f, ctx); err != nil && ctx.Err() == nil {
				f.noteEnd(err)
				var refused *refusedError
				switch {
				case !errors.As(err, &refused):
				case refused.status == http.StatusTooManyRequests && refused.retryAfter > 0:
					pause += refused.retryAfter
				case refused.status == http.StatusUnauthorized && f.forgetful:
					f.kept = ""
				default:
					f.fail(err)
				}
			}
			await.Duration(ctx, pause)
		}
	}()
}

func (f *follower) end() {
	f.cancel()
	<-f.done
}

func (f *follower) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wrong == nil {
		f.wrong = err
	}
}

// take records a message.
func (f *follower) take(data, cursor string) error {
	var m message
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		return err
	}
	if m.Topic == relay.TopicCursor {
		f.begin(m.Cursor)
		return nil
	}
	if cursor == "" {
		cursor = m.Cursor
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	err := errors.New("there is none")
	if cursor != "" {
		err = f.ledger.take(m, cursor)
	}
	if err != nil {
		if f.wrong == nil {
			f.wrong = fmt.Errorf("got %s, with the cursor %q: %w", data, cursor, err)
		}
		return err
	}
	f.cursor = cursor
	return nil
}

// begin records a cursor without a message.
func (f *follower) begin(cursor string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cursor = cursor
	if !f.began {
		f.began = true
		f.ledger.begin(cursor)
	}
}

func (f *follower) place() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.connections++
	return f.cursor
}

// refusedError is a 4xx. Repeating the request changes it only if it is a 429, after retryAfter.
type refusedError struct {
	status     int
	body       string
	retryAfter time.Duration
}

func (e *refusedError) Error() string { return fmt.Sprintf("refused with %d %s", e.status, e.body) }

func refusal(r testkit.Reply) error {
	if r.Status >= 400 && r.Status < 500 {
		seconds, _ := strconv.Atoi(r.Header.Get("Retry-After"))
		return &refusedError{r.Status, r.Body, time.Duration(seconds) * time.Second}
	}
	return fmt.Errorf("answered %d %s", r.Status, r.Body)
}

// maxMessages returns the maximum number of messages of a connection.
func (f *follower) maxMessages() int {
	if f.brisk {
		return f.random.IntN(1 << f.random.IntN(12))
	}
	return f.random.IntN(1 << f.random.IntN(9))
}

// isSlow reports whether a connection is slow.
func (f *follower) isSlow() bool { return f.random.IntN(4) == 0 && !f.brisk }

// linger delays slow connections and waits at the barrier. It returns the number of messages that remain for the
// connection. A connection that waited is kept until it ends.
func (f *follower) linger(ctx context.Context, slow bool, left int) int {
	if slow {
		await.Duration(ctx, time.Duration(f.random.IntN(4))*time.Millisecond)
	}
	if f.barrier.pass(ctx) {
		return math.MaxInt
	}
	return left
}

// listen uses our client, which stores its cursor and resumes with it.
func (f *follower) listen(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &client.Client{URL: "http://" + f.address, Key: opsKey, Hub: f.hub, HTTP: f.client}
	o := client.ListenOptions{After: f.place(), MinBackoff: time.Millisecond, MaxBackoff: 50 * time.Millisecond}
	if f.topics != "" {
		o.Topics = []string{f.topics}
	}
	o.OnStart = f.begin
	o.OnConnected = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.connections++
	}
	left, slow := 1+f.maxMessages(), f.isSlow()
	o.OnDisconnected = func(err error, _ time.Duration) {
		f.noteEnd(err)
		left = 1 + f.maxMessages()
	}
	for n, err := range c.Listen(ctx, o) {
		if err != nil {
			f.fail(err)
			return err
		}
		if err := f.take(string(n.Data), n.Cursor); err != nil {
			return err
		}
		if left--; left == 0 {
			break
		}
		left = f.linger(ctx, slow, left)
	}
	return nil
}

// token requests a token from any node.
func (f *follower) token(ctx context.Context) (string, error) {
	d := &testkit.Daemon{Public: f.address}
	r, err := d.Try(ctx, testkit.Request{Method: "GET", Key: opsKey, Hub: f.hub})
	if err != nil {
		return "", err
	}
	var answer struct{ Data struct{ Token string } }
	if err := json.Unmarshal([]byte(r.Body), &answer); r.Status != http.StatusOK || err != nil {
		return "", refusal(r)
	}
	return answer.Data.Token, nil
}

// socket uses a websocket like a program that knows all parameters.
func (f *follower) socket(ctx context.Context) error {
	token, err := f.token(ctx)
	if err != nil {
		return err
	}
	after := f.place()
	if after == "" {
		after = "now"
	}
	query := "?token=" + token + "&cursor=true&after=" + after
	if f.topics != "" {
		query += "&topics=" + f.topics
	}
	dialer := &websocket.Dialer{HandshakeTimeout: patience}
	conn, res, err := dialer.DialContext(ctx, "ws://"+f.address+notificationsPath+query, nil)
	if err != nil {
		if res == nil {
			return err
		}
		r, _ := testkit.ReadReply(res)
		return refusal(r)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	slow := f.isSlow()
	for left := f.maxMessages(); left > 0; left-- {
		_, data, err := conn.ReadMessage()
		if err != nil {
			return err
		}
		if err := f.take(string(data), ""); err != nil {
			return err
		}
		left = f.linger(ctx, slow, left)
	}
	if f.random.IntN(2) == 0 { // otherwise it disconnects without a close frame
		_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""),
			time.Now().Add(time.Second))
	}
	return nil
}

// eventsByKey reads an event stream with an API key, as programs do.
func (f *follower) eventsByKey(ctx context.Context) error {
	header := http.Header{"Authorization": {"Bearer " + opsKey}}
	if f.hub != "" {
		header.Set("X-Hub-Id", f.hub)
	}
	return f.events(ctx, url.Values{}, header)
}

// eventsByToken reads an event stream like a browser, which reconnects with the same token.
func (f *follower) eventsByToken(ctx context.Context) (err error) {
	if f.kept == "" {
		if f.kept, err = f.token(ctx); err != nil {
			return err
		}
	}
	return f.events(ctx, url.Values{"token": {f.kept}}, http.Header{})
}

func (f *follower) events(ctx context.Context, query url.Values, header http.Header) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if f.topics != "" {
		query.Set("topics", f.topics)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.address+notificationsPath+"?"+
		query.Encode(), nil)
	if err != nil {
		return err
	}
	req.Header = header
	req.Header.Set("Accept", "text/event-stream")
	if id := f.place(); id != "" {
		req.Header.Set("Last-Event-ID", id)
	}
	res, err := f.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		r, _ := testkit.ReadReply(res)
		return refusal(r)
	}
	return f.readEvents(ctx, bufio.NewScanner(res.Body))
}

func (f *follower) readEvents(ctx context.Context, lines *bufio.Scanner) error {
	left, slow := f.maxMessages(), f.isSlow()
	id, data, event := "", "", ""
	for left > 0 && lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "id":
			id = value
		case "data":
			data = value
		case "event":
			event = value
		case "":
			switch {
			case lines.Text() != "": // a comment
			case event == "close":
				return closeOf(data)
			case data != "":
				if err := f.take(data, id); err != nil {
					return err
				}
				left--
				left = f.linger(ctx, slow, left)
			case id != "":
				f.begin(id)
			}
			if lines.Text() == "" {
				id, data, event = "", "", ""
			}
		}
	}
	return lines.Err()
}
