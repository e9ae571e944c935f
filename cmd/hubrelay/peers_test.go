package main_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// webhookSecret is the secret of every sink in these tests.
const webhookSecret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

// hook is a request that a receiver got.
type hook struct {
	path, id, body string
	// attempt counts the requests with this id on this path, from 1.
	attempt int
	// status is the status of the response, 0 before it.
	status int
	// bad is the violation of Standard Webhooks 1.0, or nil.
	bad error
}

// receiver is a webhook receiver.
type receiver struct {
	url string

	mu       sync.Mutex
	hooks    []hook
	attempts map[string]int // by path and id
	answer   func(w http.ResponseWriter, h hook)
}

// receive starts a receiver that responds with answer, which may block. With nil it responds with 204.
func receive(t *testing.T, answer func(w http.ResponseWriter, h hook)) *receiver {
	t.Helper()
	r := &receiver{answer: answer, attempts: make(map[string]int)}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the sender was killed
	}
	h := hook{path: req.URL.Path, id: req.Header.Get("webhook-id"), body: string(body), bad: verifySignature(req, body)}
	r.mu.Lock()
	r.attempts[h.path+" "+h.id]++
	h.attempt = r.attempts[h.path+" "+h.id]
	at := len(r.hooks)
	r.hooks = append(r.hooks, h)
	answer := r.answer
	r.mu.Unlock()
	noted := &notedWriter{ResponseWriter: w, status: -1} // a handler without a status aborts
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.hooks[at].status = noted.status
	}()
	if answer == nil {
		noted.WriteHeader(http.StatusNoContent)
		return
	}
	answer(noted, h)
}

type notedWriter struct {
	http.ResponseWriter
	status int
}

func (w *notedWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// verifySignature verifies a request using only Standard Webhooks.
func verifySignature(req *http.Request, body []byte) error {
	id, stamp := req.Header.Get("webhook-id"), req.Header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if age := time.Since(time.Unix(seconds, 0)); err != nil || age > 2*time.Minute || age < -time.Minute {
		return fmt.Errorf("webhook-timestamp is %q", stamp)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(webhookSecret, "whsec_"))
	if err != nil {
		return err
	}
	mac := hmac.New(sha256.New, key)
	_, _ = io.WriteString(mac, id+"."+stamp+".")
	_, _ = mac.Write(body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	switch {
	case id == "":
		return errors.New("there is no webhook-id")
	case req.Method != http.MethodPost || req.Header.Get("Content-Type") != "application/json":
		return fmt.Errorf("%s of %q", req.Method, req.Header.Get("Content-Type"))
	case !slices.Contains(strings.Fields(req.Header.Get("webhook-signature")), want):
		return fmt.Errorf("the signature is %q, want %q", req.Header.Get("webhook-signature"), want)
	}
	return nil
}

// of returns the requests on a path.
func (r *receiver) of(path string) []hook {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []hook
	for _, h := range r.hooks {
		if h.path == path {
			list = append(list, h)
		}
	}
	return list
}

// counts returns the number of requests per id.
func (r *receiver) counts() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := make(map[string]int, len(r.hooks))
	for _, h := range r.hooks {
		counts[h.id]++
	}
	return counts
}

// unanswered returns the ids of the requests in progress.
func (r *receiver) unanswered() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	open := make(map[string]bool)
	for _, h := range r.hooks {
		if h.status == 0 {
			open[h.id] = true
		}
	}
	return open
}

// acceptedAll returns a probe: each id got a 2xx response on a path.
func (r *receiver) acceptedAll(path string, ids []string) func() error {
	return func() error {
		took := map[string]bool{}
		for _, h := range r.of(path) {
			if h.status/100 == 2 {
				took[h.id] = true
			}
		}
		if err := missing(ids, func(id string) bool { return took[id] }); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}
}

// receivedAll returns a probe: each id arrived.
func (r *receiver) receivedAll(ids []string) func() error {
	return func() error {
		counts := r.counts()
		return missing(ids, func(id string) bool { return counts[id] > 0 })
	}
}

func missing(ids []string, has func(string) bool) error {
	count, first := 0, ""
	for _, id := range ids {
		if !has(id) {
			count++
			if first == "" {
				first = id
			}
		}
	}
	if count == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d have not come, the first is %s", count, len(ids), first)
}

// webhookSink returns the YAML of a sink. more is inserted inside of {…}.
func webhookSink(name, url, more string) string {
	return scheduledWebhookSink(name, url, "100ms, 200ms, 300ms, 500ms, 1s, 1s, 1s, 1s, 1s, 1s", more)
}

// scheduledWebhookSink is webhookSink with the delays of retries.
func scheduledWebhookSink(name, url, schedule, more string) string {
	return fmt.Sprintf("  %s: {type: webhook, url: %q, secrets: [%q], allow_cidrs: [127.0.0.0/8], retry: {schedule: [%s]}%s}\n",
		name, url, webhookSecret, schedule, more)
}

// socket is a websocket client that reads all frames.
type socket struct {
	conn *websocket.Conn

	mu     sync.Mutex
	frames []string
	ended  error
}

// upgrade tries to open a websocket. If it is rejected, the reply has the response.
func (d *daemon) upgrade(t *testing.T, query string, header http.Header) (*websocket.Conn, testkit.Reply) {
	t.Helper()
	dialer := &websocket.Dialer{HandshakeTimeout: patience}
	conn, res, err := dialer.Dial("ws://"+d.Public+notificationsPath+query, header)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
		return conn, testkit.Reply{Status: res.StatusCode, Header: res.Header}
	}
	if res == nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	return nil, testkit.Reply{Status: res.StatusCode, Header: res.Header, Body: string(body)}
}

// connect opens the stream of a hub, or the account stream if hub is empty, and reads until it ends.
func (d *daemon) connect(t *testing.T, key, hub, query string) *socket {
	t.Helper()
	conn, refused := d.upgrade(t, "?token="+d.Token(t, key, hub)+query, nil)
	if conn == nil {
		t.Fatalf("the upgrade was answered %d %s", refused.Status, refused.Body)
	}
	return listenOn(conn)
}

func listenOn(conn *websocket.Conn) *socket {
	s := &socket{conn: conn}
	go func() {
		for {
			kind, data, err := conn.ReadMessage()
			if err == nil && kind != websocket.TextMessage {
				err = fmt.Errorf("a message of type %d came", kind)
			}
			s.mu.Lock()
			if err != nil {
				s.ended = err
				s.mu.Unlock()
				return
			}
			s.frames = append(s.frames, string(data))
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *socket) snapshot() (frames []string, ended error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.frames), s.ended
}

// wait returns the first n frames. The stream must not end earlier.
func (s *socket) wait(t *testing.T, n int) []string {
	t.Helper()
	var got []string
	testkit.Eventually(t, fmt.Sprintf("%d websocket frames", n), func() error {
		frames, ended := s.snapshot()
		got = frames
		if len(frames) >= n {
			return nil
		}
		if ended != nil {
			t.Fatalf("the stream ended with %v after %d frames", ended, len(frames))
		}
		return fmt.Errorf("there are %d", len(frames))
	})
	return got
}

// receivedAll returns a probe: a frame arrived for every object.id.
func (s *socket) receivedAll(ids []string) func() error {
	return func() error {
		frames, _ := s.snapshot()
		seen := make(map[string]bool, len(frames))
		for _, f := range frames {
			seen[objectID(f)] = true
		}
		return missing(ids, func(id string) bool { return seen[id] })
	}
}

// end waits until the stream ends and returns its error.
func (s *socket) end(t *testing.T) error {
	t.Helper()
	var ended error
	testkit.Eventually(t, "the websocket to be closed", func() error {
		if _, ended = s.snapshot(); ended == nil {
			return errors.New("it is open")
		}
		return nil
	})
	return ended
}

// closed waits until the stream ends and checks the close code.
func (s *socket) closed(t *testing.T, code int) *websocket.CloseError {
	t.Helper()
	ended := s.end(t)
	var closed *websocket.CloseError
	if !errors.As(ended, &closed) || closed.Code != code {
		t.Fatalf("the stream ended with %v, want code %d", ended, code)
	}
	return closed
}

// objectID returns the object.id of a notification. By default this is the notification id.
func objectID(frame string) string {
	var n struct{ Object struct{ ID string } }
	if json.Unmarshal([]byte(frame), &n) != nil {
		return "no JSON: " + frame
	}
	return n.Object.ID
}

func objectIDs(frames []string) []string {
	ids := make([]string, len(frames))
	for i, f := range frames {
		ids[i] = objectID(f)
	}
	return ids
}

// redisAt connects to a Redis at a socket path.
func redisAt(t *testing.T, socket string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{
		Network: "unix", Addr: socket, MaxRetries: -1, DisableIdentity: true, ReadTimeout: testkit.Patience, WriteTimeout: testkit.Patience,
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// plain is a notification without an object. Its object.id becomes the notification id.
const plain = `{"topic":"container.created","context":{}}`

// lines returns n notifications as NDJSON.
func lines(n int) string { return strings.Repeat(plain+"\n", n) }

// hasAll returns an error for each part that text does not contain.
func hasAll(text string, parts ...string) []error {
	var errs []error
	for _, part := range parts {
		if !strings.Contains(text, part) {
			errs = append(errs, fmt.Errorf("%q is not there", part))
		}
	}
	return errs
}
