package clients

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
	"github.com/hubrelay/hubrelay/relay/internal/clients/transport"
)

// pipes is a ResponseWriter whose connection has no buffer.
type pipes struct {
	*httptest.ResponseRecorder
	near net.Conn
}

func (p pipes) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return p.near, bufio.NewReadWriter(bufio.NewReader(p.near), bufio.NewWriter(p.near)), nil
}

// endless is a log with entries after every position.
type endless struct{}

func (endless) ReadFrom(
	_ context.Context,
	_ int,
	after streamid.Position,
	count int,
) (streamid.Position, bool, []relay.Notification, error) {
	at := after
	var list []relay.Notification
	for range count {
		at.Seq++
		n := sized("h", "", "job.created", int(at.Seq), 1000)
		n.Cursor = at.String()
		list = append(list, n)
	}
	return after, false, list, nil
}

// A client that reads nothing for an hour, or too little, costs at most its write queue, and is closed in time.
func TestSlowClient_OneHour(t *testing.T) {
	t.Parallel()
	const quick, slow = 16 << 10, 4 << 10 // bytes a second
	behind := string(testCursors.Append(nil, 1, 0, []streamid.Position{{MS: 1, Seq: 1}}))
	for name, tt := range map[string]struct {
		s       Subscription
		events  bool
		traffic int // bytes a second
		reads   int // bytes per second, after the response
		within  time.Duration
		ending  CloseReason
		said    []byte // at the end of what it reads, if it reads
	}{
		"a quiet hub":                {within: time.Minute, ending: ClosedSlowConsumer}, // not even a ping fits in
		"a quiet hub's event stream": {events: true, within: time.Minute, ending: ClosedSlowConsumer},
		"traffic":                    {traffic: 2 << 10, within: 15 * time.Second, ending: ClosedSlowConsumer},
		"traffic of an event stream": {
			events: true, traffic: 2 << 10, within: 15 * time.Second, ending: ClosedSlowConsumer,
		},
		"a flood": {traffic: 4 << 20, within: 10 * time.Second, ending: ClosedSlowConsumer},
		"a replay": {
			s: Subscription{After: behind}, traffic: 2 << 10, within: 15 * time.Second, ending: ClosedSlowConsumer,
		},
		"slower than the traffic": {
			traffic: 3 * slow, reads: slow, within: 5 * time.Minute, ending: ClosedSlowConsumer,
			said: frame.NewClose(frame.CloseSlowConsumer, "too slow")[2:],
		},
		"slower than the traffic of an event stream": {
			events: true, traffic: 3 * slow, reads: slow, within: 5 * time.Minute, ending: ClosedSlowConsumer,
			said: []byte(`{"code":1013,`),
		},
		"a slow replay":         {s: Subscription{After: behind}, traffic: 3 * slow, reads: slow},
		"slow, but fast enough": {traffic: slow / 2, reads: slow},
		"fast":                  {traffic: quick / 2, reads: quick},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				observer := newCounter()
				h := New(
					Options{History: endless{}, HistoryBytes: 64 << 10, Observer: observer, Limits: Limits{Node: 1}},
				)
				h.SetPosition(0, streamid.Position{MS: 1, Seq: 1000000000})
				ctx, stop := context.WithCancel(t.Context())
				go func() { _ = h.Run(ctx) }()
				defer stop()
				tt.s.Hub, tt.s.Allows = "h", func(string, string) bool { return true }
				far := serveOverPipe(t, h, tt.s, tt.events)
				heard := make(chan []byte, 1)
				go func() { heard <- readSlowly(far, tt.reads, tt.events) }()
				most, gone := hour(h, tt.traffic, observer.ended)
				if most > 1<<20 {
					t.Errorf("%d bytes were queued for it", most)
				}
				if gone.after > tt.within || gone.ending != tt.ending {
					t.Errorf(
						"it ended with %q after %s, want %q within %s",
						gone.ending,
						gone.after,
						tt.ending,
						tt.within,
					)
				}
				synctest.Wait()
				if tt.ending != "" && (h.Clients() != 0 || h.limits.taken != 0 || h.index.size() != 0) {
					t.Errorf(
						"%d clients stay, of %d places, and %d entries of the index",
						h.Clients(),
						h.limits.taken,
						h.index.size(),
					)
				}
				_ = far.Close()
				if text := <-heard; !bytes.Contains(text[max(0, len(text)-200):], tt.said) {
					t.Errorf("it was told %q last", text[max(0, len(text)-200):])
				}
				synctest.Wait()
			})
		})
	}
}

// serveOverPipe returns the client's end of a connection.
func serveOverPipe(t *testing.T, h *Server, s Subscription, events bool) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	serve := h.ServeEvents
	if !events {
		serve = h.ServeWebSocket
		for name, value := range map[string]string{
			"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
			"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
		} {
			r.Header.Set(name, value)
		}
	}
	if problem := serve(pipes{httptest.NewRecorder(), near}, r, s); problem != nil {
		t.Fatal(problem)
	}
	return far
}

// readSlowly reads the answer, and then so many bytes a second, until the connection ends. It answers pings, where it
// reads at all.
func readSlowly(conn net.Conn, pace int, events bool) []byte {
	var text []byte
	one := make([]byte, 1)
	for !bytes.HasSuffix(text, []byte("\r\n\r\n")) {
		if _, err := conn.Read(one); err != nil {
			return text
		}
		text = append(text, one[0])
	}
	if pace == 0 {
		return text
	}
	for space := make([]byte, pace); ; time.Sleep(time.Second) {
		if !events {
			go func() { _, _ = conn.Write([]byte("\x8a\x80\x00\x00\x00\x00")) }()
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Second / 2))
		for n := 0; n < pace; {
			got, err := conn.Read(space[n:])
			text = append(text, space[n:n+got]...)
			n += got
			if transport.IsTimeout(err) {
				break
			}
			if err != nil {
				return text
			}
		}
	}
}

// end describes how a connection ended.
type end struct {
	ending CloseReason
	after  time.Duration
}

// hour broadcasts for an hour, and returns the most that was queued for a client at any time.
func hour(h *Server, traffic int, ended chan CloseReason) (most int, gone end) {
	began := time.Now()
	number := 0
	for second := range 3600 {
		for sent := 0; sent < traffic; sent += 1000 {
			n := sized("h", "", "job.created", number, 1000)
			n.Cursor = streamid.Position{MS: 2, Seq: uint64(number)}.String()
			h.Broadcast(Batch{Notifications: []relay.Notification{n}})
			number++
			for _, c := range h.allConnections() {
				c.mu.Lock()
				most = max(most, c.queue.size)
				c.mu.Unlock()
			}
		}
		time.Sleep(time.Until(began.Add(time.Duration(second+1) * time.Second)))
		select {
		case ending := <-ended:
			return most, end{ending, time.Since(began)}
		default:
		}
	}
	return most, gone
}
