package httpserver

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"

	"github.com/hubrelay/hubrelay/relay"
)

// retryAfter is the Retry-After of a 503, in seconds: what is away is usually back at once.
const retryAfter = "1"

type envelope struct {
	Error envelopeError `json:"error"`
	Data  *struct{}     `json:"data"` // always null
}

type envelopeError struct {
	Status int            `json:"status"`
	Code   relay.Code     `json:"code"`
	Title  string         `json:"title"`
	Detail string         `json:"detail"`
	Source string         `json:"source,omitempty"`
	Extra  map[string]any `json:"extra,omitempty"`
}

// Envelope returns the JSON text in which every error of the public interface is sent, with a final newline.
func Envelope(e *relay.Error) []byte {
	body := envelope{Error: envelopeError{
		Status: e.Status(), Code: e.Code, Title: e.Title(), Detail: e.Detail, Source: e.Source, Extra: e.Extra,
	}}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil { // a value in Extra that JSON cannot hold
		body.Error.Extra = nil
		b.Reset()
		_ = enc.Encode(body)
	}
	return b.Bytes()
}

// WriteError answers r with e in the envelope, and with the headers that its status asks for. The caller must not have
// written the header yet.
func WriteError(w http.ResponseWriter, r *http.Request, e *relay.Error) {
	h := w.Header()
	switch status := e.Status(); status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="hubrelay"`)
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if h.Get("Retry-After") == "" {
			h.Set("Retry-After", retryAfter)
		}
	case http.StatusUpgradeRequired:
		if r.ProtoMajor == 1 { // HTTP/2 forbids both
			h.Set("Upgrade", "websocket")
			h.Set("Connection", "Upgrade")
		}
	}
	WriteJSON(w, e.Status(), Envelope(e))
}

// WriteJSON answers with a JSON text that nobody may cache.
func WriteJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone away is no concern of ours
}

// Recover answers a panic of next with 500.unknown; the id in extra.id stands in the log beside the cause. It logs
// every 500 that way, and lets http.ErrAbortHandler pass.
func Recover(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if cause == http.ErrAbortHandler { //nolint:errorlint // a panic's value, which nobody wraps
				panic(cause) //nolint:forbidigo // net/http asks for this very panic to end a connection
			}
			WriteError(w, r, InternalError(r, log, fmt.Errorf("panic: %v\n%s", cause, debug.Stack())))
		}()
		next.ServeHTTP(w, r)
	})
}

// InternalError logs an error that the far side can do nothing about, and returns the 500.unknown that tells it the id under
// which the log has it.
func InternalError(r *http.Request, log *slog.Logger, err error) *relay.Error {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	id := hex.EncodeToString(b[:])
	log.Error("a request failed inside the relay", "id", id, "method", r.Method, "path", r.URL.Path, "error", err)
	return relay.NewError(relay.CodeUnknown, "the relay's log has the cause under the id "+id).WithExtra("id", id)
}
