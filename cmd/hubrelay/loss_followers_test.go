package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

// followerKind makes one connection of a follower and returns why that ended.
type followerKind struct {
	name    string
	connect func(*follower, context.Context) error
}

var followerKinds = []followerKind{
	{"the Go client", (*follower).listen},
	{"a websocket", (*follower).socket},
	{"an event stream", (*follower).events},
}

// follower follows a pipeline over many connections, to any node, each from where the one before had ended.
type follower struct {
	followerKind
	name   string
	losses *losses
	hub    string // empty for the account pipeline
	topics string
	random *rand.Rand
	client *http.Client
	cancel context.CancelFunc
	done   chan struct{}

	mu          sync.Mutex
	cursor      string
	begun       map[string]int64 // by hub, what was being published when it got its first cursor; nil before
	heard       map[string][]int
	connections int
	wrong       error
}

func newFollower(l *losses, kind int, hub string, random *rand.Rand) *follower {
	f := &follower{
		followerKind: followerKinds[kind], losses: l, hub: hub, random: random, heard: make(map[string][]int), done: make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
	if random.IntN(3) == 0 {
		f.topics = "job.*"
	}
	f.name = fmt.Sprintf("%s of %q with topics %q", f.followerKind.name, hub, f.topics)
	return f
}

// start follows once begin is closed; nil is at once.
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
			if err := f.connect(f, ctx); err != nil && ctx.Err() == nil {
				var refused *refusedError
				if errors.As(err, &refused) {
					f.fail(err)
				}
			}
			relay.Pause(ctx, time.Duration(f.random.IntN(100))*time.Millisecond)
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

// take keeps a message.
func (f *follower) take(data, cursor string) error {
	var m struct {
		Topic, Cursor string
		Object        struct{ ID, Error string }
	}
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		return err
	}
	if m.Topic == "hubrelay.cursor" {
		f.begin(m.Cursor)
		return nil
	}
	if cursor == "" {
		cursor = m.Cursor
	}
	hub, n, err := numberOf(m.Object.ID)
	if err != nil || cursor == "" {
		f.fail(fmt.Errorf("got %s, with the cursor %q", data, cursor))
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cursor = cursor
	f.heard[hub] = append(f.heard[hub], n)
	return nil
}

// begin keeps a cursor that came without a message. Whatever is published after the first must come.
func (f *follower) begin(cursor string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cursor = cursor; f.begun != nil {
		return
	}
	f.begun = make(map[string]int64)
	for hub, n := range f.losses.begun {
		f.begun[hub] = n.Load()
	}
}

func (f *follower) place() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.connections++
	return f.cursor
}

// refusedError is an answer that no repetition mends.
type refusedError struct {
	status int
	body   string
}

func (e *refusedError) Error() string { return fmt.Sprintf("refused with %d %s", e.status, e.body) }

func refusal(r reply) error {
	if r.status >= 400 && r.status < 500 {
		return &refusedError{r.status, r.body}
	}
	return fmt.Errorf("answered %d %s", r.status, r.body)
}

// patienceFor is how many messages a connection is kept for, at most.
func (f *follower) patienceFor() int { return f.random.IntN(1 << f.random.IntN(9)) }

// linger makes some connections slow.
func (f *follower) linger(ctx context.Context, slow bool) {
	if slow {
		relay.Pause(ctx, time.Duration(f.random.IntN(4))*time.Millisecond)
	}
}

// listen is a program that keeps the cursor of what it has seen and begins again with it.
func (f *follower) listen(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &client.Client{URL: "http://" + f.losses.way.Addr().String(), Key: opsKey, Hub: f.hub, HTTP: f.client}
	o := client.ListenOptions{After: f.place(), LeastPause: time.Millisecond, MostPause: 50 * time.Millisecond}
	if f.topics != "" {
		o.Topics = []string{f.topics}
	}
	o.Connected = func() {
		f.mu.Lock()
		began := f.begun != nil
		f.connections++
		f.mu.Unlock()
		if !began {
			f.begin("")
		}
	}
	left, slow := 1+f.patienceFor(), f.random.IntN(4) == 0
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
		f.linger(ctx, slow)
	}
	return nil
}

// token gets one from any node.
func (f *follower) token(ctx context.Context) (string, error) {
	d := &daemon{public: f.losses.way.Addr().String()}
	r, err := d.try(ctx, request{method: "GET", key: opsKey, hub: f.hub})
	if err != nil {
		return "", err
	}
	var answer struct{ Data struct{ Token string } }
	if err := json.Unmarshal([]byte(r.body), &answer); r.status != http.StatusOK || err != nil {
		return "", refusal(r)
	}
	return answer.Data.Token, nil
}

// socket is a program of somebody who has read what the parameters mean.
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
	conn, res, err := dialer.DialContext(ctx, "ws://"+f.losses.way.Addr().String()+notificationsPath+query, nil)
	if err != nil {
		if res == nil {
			return err
		}
		r, _ := readReply(res)
		return refusal(r)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	slow := f.random.IntN(4) == 0
	for range f.patienceFor() {
		_, data, err := conn.ReadMessage()
		if err != nil {
			return err
		}
		if err := f.take(string(data), ""); err != nil {
			return err
		}
		f.linger(ctx, slow)
	}
	if f.random.IntN(2) == 0 { // else it just goes
		_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
	}
	return nil
}

// events is what a browser does.
func (f *follower) events(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	address := "http://" + f.losses.way.Addr().String() + notificationsPath
	if f.topics != "" {
		address += "?topics=" + f.topics
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Authorization", "Bearer "+opsKey)
	if f.hub != "" {
		req.Header.Set("X-Hub-Id", f.hub)
	}
	if id := f.place(); id != "" {
		req.Header.Set("Last-Event-ID", id)
	}
	res, err := f.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		r, _ := readReply(res)
		return refusal(r)
	}
	return f.readEvents(ctx, bufio.NewScanner(res.Body))
}

func (f *follower) readEvents(ctx context.Context, lines *bufio.Scanner) error {
	left, slow := f.patienceFor(), f.random.IntN(4) == 0
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
			case lines.Text() != "" || event == "close": // a comment
			case data != "":
				if err := f.take(data, id); err != nil {
					return err
				}
				left--
				f.linger(ctx, slow)
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

// complete says what a follower lacks of what the log has, or has too much.
func (f *follower) complete(log map[string][]int, accepted map[string]*atomic.Int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wrong != nil {
		return fmt.Errorf("%s: %w", f.name, f.wrong)
	}
	for hub, want := range log {
		if f.hub != "" && hub != f.hub {
			if len(f.heard[hub]) > 0 {
				return fmt.Errorf("%s heard of %s", f.name, hub)
			}
			continue
		}
		if f.topics != "" {
			want = slices.DeleteFunc(slices.Clone(want), func(n int) bool { return n%3 == 0 })
		}
		// From the first on that it heard, which may be one that was being published when it began.
		got := f.heard[hub]
		from, _ := slices.BinarySearch(want, int(f.begun[hub])+1)
		if len(got) > 0 {
			at, known := slices.BinarySearch(want, got[0])
			if !known || at > from {
				return fmt.Errorf("%s began when %d of %s was being published, and heard %d first", f.name, f.begun[hub], hub, got[0])
			}
			from = at
		}
		for i, n := range want[from:] {
			if i == len(got) || got[i] != n {
				return fmt.Errorf("%s heard %d of %s of %s; where %d belongs came %v behind %v",
					f.name, len(got), fmt.Sprint(len(want)-from), hub, n, got[i:min(i+5, len(got))], got[max(0, i-3):i])
			}
		}
		if len(got) > len(want)-from {
			return fmt.Errorf("%s heard %v of %s in the end", f.name, got[len(want)-from:], hub)
		}
	}
	return nil
}

func (f *follower) figures() (connections, heard int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.connections, total(f.heard)
}
