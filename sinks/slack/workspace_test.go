package slack

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

const testToken = "xoxb-s3cret-token-0123456789"

// workspace simulates Slack's Web API by its reference of chat.postMessage and chat.update: one token, channels,
// messages by ts, and threads. Slack itself cannot be reached here.
type workspace struct {
	mu       sync.Mutex
	messages map[string][]map[string]any // by channel, in order
	calls    []string
	sent     []sentCall
	answer   func(method string, w http.ResponseWriter) bool // returns true if it has answered
	behave   sinktest.Behavior
	done     chan struct{}
	ids      []string
	next     int
}

// sentCall is a call of a method with its arguments.
type sentCall struct {
	Method  string          `json:"method"`
	Message json.RawMessage `json:"message"`
}

func newWorkspace(t testing.TB) (*workspace, string) {
	w := &workspace{messages: map[string][]map[string]any{}, done: make(chan struct{})}
	srv := httptest.NewServer(w)
	t.Cleanup(func() { close(w.done); srv.Close() })
	return w, srv.URL + "/api"
}

var (
	deliveryID     = regexp.MustCompile("Delivery `([0-9a-f]+)`")
	notificationID = regexp.MustCompile("Event `([0-9a-f]+)`")
)

func (ws *workspace) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	method := strings.TrimPrefix(r.URL.Path, "/api/")
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.calls = append(ws.calls, method)
	ws.sent = append(ws.sent, sentCall{method, body})
	if id := deliveryID.FindSubmatch(body); id != nil {
		ws.ids = append(ws.ids, string(id[1]))
	} else if id := notificationID.FindSubmatch(body); id != nil {
		ws.ids = append(ws.ids, string(id[1]))
	}
	fail := func(text string) {
		_, _ = fmt.Fprintf(w, `{"ok":false,"error":%q,"response_metadata":{"messages":["[ERROR] no"]}}`, text)
	}
	var m map[string]any
	switch {
	case ws.answer != nil && ws.answer(method, w):
	case r.Header.Get("Authorization") != "Bearer "+testToken || ws.behave == sinktest.Gone:
		fail("token_revoked")
	case ws.behave == sinktest.Fail:
		http.Error(w, "<html>busy "+testToken+"</html>", http.StatusServiceUnavailable)
	case ws.behave == sinktest.Throttle:
		w.Header().Set("Retry-After", "30")
		http.Error(w, `{"ok":false,"error":"ratelimited"}`, http.StatusTooManyRequests)
	case ws.behave == sinktest.Reject || json.Unmarshal(body, &m) != nil || m["text"] == "":
		fail("invalid_blocks")
	case ws.behave == sinktest.Hang:
		ws.mu.Unlock()
		<-ws.done
		ws.mu.Lock()
	default:
		ws.apply(method, m, w, fail)
	}
}

func (ws *workspace) apply(method string, m map[string]any, w http.ResponseWriter, fail func(string)) {
	channel := strings.Replace(fmt.Sprint(m["channel"]), "#billing", "C0BILLING", 1)
	find := func(ts any) map[string]any {
		for _, one := range ws.messages[channel] {
			if one["ts"] == ts {
				return one
			}
		}
		return nil
	}
	switch method {
	case methodPost:
		if ts, threaded := m["thread_ts"]; threaded && find(ts) == nil {
			fail("thread_not_found")
			return
		}
		ws.next++
		m["ts"] = fmt.Sprintf("1795235000.%06d", ws.next)
		ws.messages[channel] = append(ws.messages[channel], m)
	case methodUpdate:
		one := find(m["ts"])
		if one == nil || !strings.HasPrefix(channel, "C0") {
			fail("message_not_found")
			return
		}
		for name, value := range m {
			one[name] = value
		}
		one["updated"] = true
	default:
		fail("unknown_method")
		return
	}
	_, _ = fmt.Fprintf(w, `{"ok":true,"channel":%q,"ts":%q,"message":{"text":%q}}`, channel, m["ts"],
		strings.Repeat("x", 3000))
}

// shown are a channel's messages: their first lines, replies indented.
func (ws *workspace) shown(channel string) []string {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	var out []string
	for _, m := range ws.messages[channel] {
		line := fmt.Sprint(m["text"])
		if m["thread_ts"] != nil {
			line = "  " + line
		}
		out = append(out, line)
	}
	return out
}

// notes is a relay.Memory of one process.
type notes struct {
	mu     sync.Mutex
	values map[string]string
	taken  map[string]bool
}

func newNotes() *notes { return &notes{values: map[string]string{}, taken: map[string]bool{}} }

func (n *notes) Lock(_ context.Context, name string, _ time.Duration) (string, relay.StateLock, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.taken[name] {
		return "", nil, relay.ErrLocked
	}
	n.taken[name] = true
	return n.values[name], heldNote{n, name}, nil
}

type heldNote struct {
	*notes
	name string
}

func (h heldNote) Save(_ context.Context, value string, _ time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.values[h.name] = value
	delete(h.taken, h.name)
	return nil
}

func (h heldNote) Release(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.taken, h.name)
	return nil
}

// happened is a delivery of one event of a container, the n-th of the log.
func happened(n int, topic, id, state, problem string) relay.Delivery {
	containers := "[" + quoted(id) + "]"
	if strings.HasPrefix(topic, "job.") {
		containers = "[]"
	}
	data := fmt.Sprintf(`{"topic":%q,"object":{"id":%s,"state":%s,"error":%s},"context":{"hub_id":"h1",`+
		`"account_id":"","environments":[],`+
		`"dns_zones":[],"clusters":[],"containers":%s},"flags":null}`,
		topic, quoted(id), quoted(state), quoted(problem), containers)
	note := relay.Notification{
		ID: fmt.Sprintf("%08x%016x", 0x6922f000+n, n), Topic: topic, Hub: "h1", Data: []byte(data),
		Cursor: fmt.Sprintf("%d-0", 1763897344000+n*1000),
	}
	return relay.Delivery{ID: note.ID, Attempt: 1, Notifications: []relay.Notification{note}}
}
