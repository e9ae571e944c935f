package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
	"github.com/hubrelay/hubrelay/relay/internal/clients/transport"
)

// events is one event stream, as a browser reads it.
type events struct {
	t      testing.TB
	answer *http.Response
	lines  *bufio.Scanner
	cancel context.CancelFunc
	lastID string
}

type oneEvent struct{ name, data string }

func (n *node) listen(t testing.TB, query string) *events {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, n.server.URL+"/?"+query, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	answer, err := n.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	e := &events{t: t, answer: answer, lines: bufio.NewScanner(answer.Body), cancel: cancel}
	e.lines.Buffer(nil, 1<<20)
	t.Cleanup(e.close)
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s: %s %v", query, answer.Status, answer.Header)
	}
	return e
}

func (e *events) close() {
	e.cancel()
	_ = e.answer.Body.Close()
}

// next returns the next event, or io.EOF after the last.
func (e *events) next() (oneEvent, error) {
	one, some := oneEvent{}, false
	for e.lines.Scan() {
		field, value, _ := strings.Cut(e.lines.Text(), ": ")
		switch {
		case field == "id":
			e.lastID = value
		case field == "event":
			one.name = value
		case field == "data" && some:
			one.data += "\n" + value
		case field == "data":
			one.data, some = value, true
		case field == "" && some:
			return one, nil
		}
	}
	if err := e.lines.Err(); err != nil {
		return one, err
	}
	return one, io.EOF
}

func (e *events) expect(first, last int) {
	e.t.Helper()
	for i := first; i <= last; i++ {
		one, err := e.next()
		var m message
		if err == nil {
			err = json.Unmarshal([]byte(one.data), &m)
		}
		if err != nil || m.N != i || one.name != "" || e.lastID == "" || m.Cursor != "" {
			e.t.Fatalf("got %.200q with id %q, want number %d: %v", one, e.lastID, i, err)
		}
	}
}

func (e *events) expectClose(code int, reason string) {
	e.t.Helper()
	e.untilClose(code, reason)
}

// untilClose returns how many messages come before the last event.
func (e *events) untilClose(code int, reason string) (messages int) {
	e.t.Helper()
	for ; ; messages++ {
		one, err := e.next()
		if err != nil {
			e.t.Errorf("the stream ended with %v, want an event", err)
			return messages
		}
		if one.name == "" {
			continue
		}
		if one.name != "close" || !strings.Contains(one.data, fmt.Sprintf(`{"code":%d,`, code)) ||
			!strings.Contains(one.data, reason) {
			e.t.Errorf("the stream ended with %v", one)
		}
		if more, err := e.next(); !errors.Is(err, io.EOF) {
			e.t.Errorf("behind the last: %v %v", more, err)
		}
		return messages
	}
}

var starts = map[string]func(*httptest.Server){
	"HTTP/1.1": (*httptest.Server).Start,
	"TLS":      (*httptest.Server).StartTLS,
	"HTTP/2": func(s *httptest.Server) {
		s.EnableHTTP2 = true
		s.StartTLS()
	},
}

// overEach runs a test over each protocol.
func overEach(t *testing.T, o Options, test func(*testing.T, *node)) {
	t.Parallel()
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := startNodeOver(t, o, nil, start)
			t.Cleanup(n.server.CloseClientConnections)
			test(t, n)
		})
	}
}

func TestEvents(t *testing.T) {
	overEach(t, Options{PingInterval: 20 * time.Millisecond}, func(t *testing.T, n *node) {
		all, some := n.listen(t, "hub=h&account=*"), n.listen(t, "account=a&topics=job.*")
		if want := "HTTP/1.1"; (all.answer.Proto == "HTTP/2.0") != strings.HasSuffix(t.Name(), "HTTP/2") {
			t.Errorf("%s, want %s", all.answer.Proto, want)
		}
		pretty := relay.Notification{
			Hub:     "h",
			Account: "a",
			Topic:   "job.created",
			Data:    []byte("{\"n\":2,\n\"x\":[\r\n1]}"),
		}
		large := sized("h", "a", "job.created", 3, 200_000)
		n.Broadcast(
			[]relay.Notification{event("h", "a", "job.created", 1), event("h", "a", "stack.created", 9), pretty, large},
		)
		n.Broadcast([]relay.Notification{event("g", "a", "job.created", 4)})
		some.expect(1, 4)
		all.expect(1, 1)
		all.expect(9, 9)
		all.expect(2, 3)
		some.close()
		n.wantEnding(t, ClosedByClient)
		for range 3 { // heartbeats
			for all.lines.Scan() && all.lines.Text() != ":" { //nolint:revive // only the comments count
			}
		}
		if err := all.lines.Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestEventsCarryTheCursorOnDemand(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{}, nil)
	e := n.listen(t, "hub=h&cursor=true")
	n.Broadcast([]relay.Notification{event("h", "", "job.created", 1)})
	one, err := e.next()
	if want := `,"cursor":"` + e.lastID + `"}`; err != nil || e.lastID == "" || !strings.HasSuffix(one.data, want) {
		t.Errorf("%v %v, want %s", one, err, want)
	}
}

// A stream that breaks at any time resumes after its last id, also without any event.
func TestEventsResume(t *testing.T) {
	t.Parallel()
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRelayedOver(t, redistest.Start(t), 2, Options{}, start)
			t.Cleanup(r.server.CloseClientConnections)
			hub := hubsInEach(r)[1]
			for _, query := range []string{"account=a", "account=a&hub=" + hub} {
				e := r.listen(t, query)
				for !strings.HasPrefix(e.lines.Text(), "id: ") && e.lines.Scan() { //nolint:revive // the first id
				}
				e.lastID = strings.TrimPrefix(e.lines.Text(), "id: ")
				for i := range 30 {
					e.close()
					r.publish(t, hub, 2*i, 2, 0)
					e2 := r.listen(t, query+"&after="+e.lastID)
					e2.expect(2*i, 2*i+1-i%2)
					e = e2
					if i%2 == 1 { // one was left
						e.close()
						e = r.listen(t, query+"&after="+e2.lastID)
						e.expect(2*i+1, 2*i+1)
					}
				}
				e.close()
			}
		})
	}
}

func TestEventsAreDrained(t *testing.T) {
	overEach(t, Options{}, func(t *testing.T, n *node) {
		e := n.listen(t, "hub=h")
		n.Broadcast([]relay.Notification{event("h", "", "job.created", 1)})
		done := make(chan error, 1)
		go func() { done <- n.Close(t.Context()) }()
		e.expectClose(frame.CloseRestart, "restart")
		if err := <-done; err != nil {
			t.Error(err)
		}
		n.wantEnding(t, ClosedDrain)
	})
}

// A stream that is not read is closed as slow, with a close event after the frames in flight.
func TestSlowEvents(t *testing.T) {
	overEach(
		t,
		Options{QueueBytes: 256 << 10, CloseTimeout: patience, WriteTimeout: patience},
		func(t *testing.T, n *node) {
			e := n.listen(t, "hub=h")
			testkit.WaitFor(t, "the queue to overflow", func() bool {
				n.Broadcast([]relay.Notification{sized("h", "", "job.created", 1, 100_000)})
				for _, c := range n.allConnections() {
					c.mu.Lock()
					left := c.state == stateClosing
					c.mu.Unlock()
					if left {
						return true
					}
				}
				return false
			})
			e.expectClose(frame.CloseSlowConsumer, "slow")
			n.wantEnding(t, ClosedSlowConsumer)
		},
	)
}

// Where a write waits too long the client was slow, also where the server ends the stream by itself.
func TestEventsWriteTimeout(t *testing.T) {
	o := Options{QueueBytes: 64 << 20, WriteTimeout: time.Second, CloseTimeout: 30 * time.Millisecond}
	overEach(t, o, func(t *testing.T, n *node) {
		n.listen(t, "hub=h")
		fillSocket(n.Server)
		n.wantEnding(t, ClosedSlowConsumer)
	})
}

// A write that ends just after its deadline does not revive a stream that the server has ended.
func TestHTTP2Conn_StaysPastDeadline(t *testing.T) {
	s := transport.NewHTTP2Conn(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	_ = s.SetWriteDeadline(time.Now().Add(time.Hour)) // a recorder has none itself
	if s.DeadlinePassed() {
		t.Error("overdue an hour before its time")
	}
	_ = s.SetWriteDeadline(time.Now().Add(-time.Nanosecond))
	_ = s.SetWriteDeadline(time.Now().Add(time.Hour))
	if !s.DeadlinePassed() {
		t.Error("a later deadline has made an ended stream good")
	}
}

func TestEventsOfAKeyThatExpires(t *testing.T) {
	t.Parallel()
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan struct{})
			n := startNodeOver(t, Options{PingInterval: time.Hour}, func(s *Subscription) {
				at := time.Now().Add(50 * time.Millisecond)
				s.CheckKey = func() Authorization { return Authorization{Expires: at} }
				s.OnGone = func() { close(ended) }
			}, start)
			t.Cleanup(n.server.CloseClientConnections)
			n.listen(t, "hub=h").expectClose(frame.ClosePolicy, "expired")
			n.wantEnding(t, ClosedKeyInvalid)
			select {
			case <-ended:
			case <-time.After(patience):
				t.Error("nobody was told of the end")
			}
		})
	}
}

// A client that vanishes while its stream is full frees everything.
func TestEventsOfAClientThatVanishes(t *testing.T) {
	overEach(t, Options{QueueBytes: 64 << 20, WriteTimeout: patience}, func(t *testing.T, n *node) {
		e := n.listen(t, "hub=h")
		fillSocket(n.Server)
		e.close()
		n.wantEnding(t, ClosedByClient)
		testkit.WaitForValue(t, "nobody left", 0, func() int { return n.Clients() })
	})
}

func TestEventsRefused(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{Limits: Limits{Node: 1}}, nil)
	get := func(method, query string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, n.server.URL+"/?"+query, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", "text/event-stream")
		answer, err := n.server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	if got := get(http.MethodHead, "hub=h"); got != http.StatusMethodNotAllowed {
		t.Errorf("HEAD: %d", got)
	}
	if got := get(http.MethodGet, "hub=h&after=x"); got != http.StatusUnprocessableEntity {
		t.Errorf("a bad cursor: %d", got)
	}
	n.listen(t, "hub=h")
	if got := get(http.MethodGet, "hub=h"); got != http.StatusServiceUnavailable {
		t.Errorf("one too many: %d", got)
	}
}

// Over HTTP/2, the server would keep the body in memory until the stream ends.
func TestServeEvents_RejectsBody(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{}, nil)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.server.URL+"/?hub=h", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	res, err := n.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("got status %d, want 400", res.StatusCode)
	}
}
