package httpserver

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/envelope"
	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
)

// retryAfter is the Retry-After of a 503 in seconds. Most outages are short.
const retryAfter = "1"

// Envelope returns the JSON of the error envelope of the public API, with a final newline.
func Envelope(e *relay.Error) []byte {
	body := struct {
		Error envelope.Error `json:"error"`
		Data  *struct{}      `json:"data"` // always null
	}{Error: envelope.Error{
		Status: e.Status(), Code: e.Code, Title: e.Title(), Detail: e.Detail, Source: e.Source, Extra: e.Extra,
	}}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil { // Extra has a value that JSON does not support
		body.Error.Extra = nil
		b.Reset()
		_ = enc.Encode(body)
	}
	return b.Bytes()
}

// WriteError writes e in the envelope and sets the headers that belong to its status. The caller must not have written
// the header.
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
		if r.ProtoMajor == 1 { // HTTP/2 forbids both headers
			h.Set("Upgrade", "websocket")
			h.Set("Connection", "Upgrade")
		}
	}
	WriteJSON(w, e.Status(), Envelope(e))
}

// WriteJSON writes a JSON response that must not be cached.
func WriteJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails only if the client has disconnected
}

// Recover converts a panic of next to a 500.unknown with an ID in extra.id, and logs the cause with the same ID. It
// does not recover http.ErrAbortHandler.
func Recover(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if cause == http.ErrAbortHandler { //nolint:errorlint // the value of a panic is not wrapped
				panic(cause) //nolint:forbidigo // net/http uses this panic to close a connection
			}
			WriteError(w, r, InternalError(r, log, fmt.Errorf("panic: %v\n%s", cause, debug.Stack())))
		}()
		next.ServeHTTP(w, r)
	})
}

// InternalError logs an internal error with a new ID, and returns a 500.unknown with this ID in extra.id.
func InternalError(r *http.Request, log *slog.Logger, err error) *relay.Error {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never returns an error
	id := hex.EncodeToString(b[:])
	log.Error("a request failed inside the relay", "request_id", id, "method", r.Method, "path", r.URL.Path, "error", err)
	return relay.NewError(relay.CodeUnknown, "the relay's log has the cause under the id "+id).WithExtra("id", id)
}

// QueryNames are the names of the query parameters of a request.
type QueryNames struct {
	// Single parameters have at most one value. Repeated ones may have several.
	Single, Repeated []string
	// IgnoreOthers ignores other parameters, as is usual in HTTP, unless their name resembles a known one.
	IgnoreOthers bool
}

// ParseQuery returns the query parameters of a request. It rejects a parameter in Single that is given more than once, because
// only one of the values would count, and unknown parameters, because a misspelled filter would select too much.
func ParseQuery(r *http.Request, names QueryNames) (url.Values, *relay.Error) {
	if r.URL.RawQuery == "" {
		return nil, nil
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, relay.NewError(relay.CodeInvalidSyntax, "the query string cannot be read")
	}
	known := slices.Sorted(slices.Values(slices.Concat(names.Single, names.Repeated)))
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if n := len(query[name]); n > 1 && slices.Contains(names.Single, name) {
			return nil, relay.NewError(relay.CodeInvalidArgument,
				fmt.Sprintf("the parameter %s is given %d times: give it once", name, n)).WithExtra("parameter", name)
		}
		if slices.Contains(known, name) {
			continue
		}
		shown := relay.Truncate(name, 60)
		err := relay.NewError(relay.CodeInvalidArgument, "there is no parameter "+strconv.Quote(shown)).WithExtra("parameter", shown)
		switch nearest := suggest.ClosestName(name, known); {
		case nearest != "":
			err.Detail += "; did you mean " + nearest + "?"
			return nil, err.WithExtra("nearest", nearest)
		case names.IgnoreOthers:
		case len(known) == 0:
			err.Detail += "; this request has no parameters"
			return nil, err
		default:
			err.Detail += "; the parameters are " + strings.Join(known, ", ")
			return nil, err
		}
	}
	return query, nil
}
