package adminserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/module"
)

// maxRequest is the maximum size of a request body.
const maxRequest = 1 << 20

// apiHandler handles /api/.
type apiHandler struct {
	sinks func() Sinks
	log   *slog.Logger
	audit audit.Recorder
	mux   *http.ServeMux
}

// dataHandler returns the content of "data" and the status.
type dataHandler func(r *http.Request) (status int, data any, err error)

// sinkHandler is a dataHandler that works on the sinks.
type sinkHandler func(s Sinks, r *http.Request) (status int, data any, err error)

func newAPIHandler(opt Options) *apiHandler {
	o := &apiHandler{sinks: opt.Sinks, log: opt.Log, audit: opt.Audit, mux: http.NewServeMux()}
	o.mux.HandleFunc("/", notFound)
	o.get("/api/sinks", listSinks)
	o.get("/api/sinks/{name}", showSink)
	o.post("/api/sinks/{name}/pause", pauseSink)
	o.post("/api/sinks/{name}/resume", resumeSink)
	o.post("/api/sinks/{name}/retry", retrySink)
	o.post("/api/sinks/{name}/replay", replaySink)
	o.post("/api/sinks/{name}/test", testSink)
	o.post("/api/sinks/{name}/forget", forgetSink)
	o.get("/api/sinks/{name}/deadletters", listDeadLetters)
	o.get("/api/sinks/{name}/deadletters/{id}", showDeadLetter)
	o.post("/api/sinks/{name}/deadletters/replay", replayDeadLetters)
	o.post("/api/sinks/{name}/deadletters/drop", dropDeadLetters)
	o.handleSources("/api/sources", opt.Sources)
	o.handleConnections("/api/connections", opt.Connections)
	o.handleAudit("/api/audit", opt.AuditLog)
	o.handleKeys("/api/keys", opt.Keys)
	o.handleAccounts("/api/accounts", opt.Accounts)
	for _, m := range opt.Routes {
		o.handle(m.Pattern, int64(m.MaxBody), m.Role, moduleHandler(m), m.Methods...)
	}
	return o
}

// moduleHandler reads the body of a request and calls the module.
func moduleHandler(m module.AdminRoute) dataHandler {
	return func(r *http.Request) (int, any, error) {
		body, err := readBody(r, m.MaxBody)
		if err != nil {
			return 0, nil, err
		}
		data, err := m.Handle(r, body)
		return http.StatusOK, data, err
	}
}

func notFound(w http.ResponseWriter, r *http.Request) {
	httpserver.WriteError(w, r,
		relay.NewError(relay.CodeNoURI, "there is nothing at "+strconv.Quote(relay.Truncate(r.URL.Path, 200))))
}

func (o *apiHandler) get(pattern string, op sinkHandler) {
	o.handle(pattern, maxRequest, adminapi.RoleViewer, o.onSinks(op), http.MethodGet, http.MethodHead)
}

func (o *apiHandler) post(pattern string, op sinkHandler) {
	o.handle(pattern, maxRequest, adminapi.RoleOperator, o.onSinks(op), http.MethodPost)
}

// onSinks adapts a sinkHandler. It returns an error while the daemon is starting.
func (o *apiHandler) onSinks(op sinkHandler) dataHandler {
	return func(r *http.Request) (int, any, error) {
		s := o.sinks()
		if s == nil {
			return 0, nil, errStarting()
		}
		return op(s, r)
	}
}

func errStarting() error { return relay.NewError(relay.CodeNotReady, "the daemon is starting") }

// handle registers a handler for requests with a body of up to maxBody bytes. Changes require the given role,
// reads require [adminapi.RoleViewer].
func (o *apiHandler) handle(pattern string, maxBody int64, change adminapi.Role, op dataHandler, methods ...string) {
	o.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			allow := strings.Join(methods, ", ")
			w.Header().Set("Allow", allow)
			httpserver.WriteError(w, r, relay.NewError(relay.CodeMethod, "allowed here: "+allow))
			return
		}
		required := change
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			required = adminapi.RoleViewer
		}
		if rejected := requireRole(r, required); rejected != nil {
			o.record(r, pattern, string(rejected.Code))
			httpserver.WriteError(w, r, rejected)
			return
		}
		if required == adminapi.RoleViewer {
			o.serve(w, r, maxBody, op)
			return
		}
		o.log.Info("admin request", "caller", callerFrom(r).Name, "method", r.Method, "path", r.URL.Path)
		r = withAuditDetail(r)
		o.record(r, pattern, o.serve(w, r, maxBody, op))
	})
}

// serve writes the response and returns its outcome for the audit log.
func (o *apiHandler) serve(w http.ResponseWriter, r *http.Request, maxBody int64, op dataHandler) (outcome string) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		// Replays may take long. They end when the connection is closed.
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(time.Hour))
		_ = control.SetWriteDeadline(time.Now().Add(time.Hour))
	}
	status, data, err := op(r)
	if err != nil {
		public := o.clientError(r, err)
		httpserver.WriteError(w, r, public)
		return string(public.Code)
	}
	body := map[string]any{"data": data}
	if page, ok := data.(pageResponse); ok {
		body = map[string]any{"data": page.data, "next": page.next}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(body); err != nil {
		public := httpserver.InternalError(r, o.log, err)
		httpserver.WriteError(w, r, public)
		return string(public.Code)
	}
	httpserver.WriteJSON(w, status, text.Bytes())
	return audit.OutcomeOK
}

// clientError converts the error of an operation for the client. Unknown errors come from Redis.
func (o *apiHandler) clientError(r *http.Request, err error) *relay.Error {
	var known *relay.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, ErrNoSink):
		return relay.NewError(relay.CodeNoSink, "there is no sink "+strconv.Quote(relay.Truncate(
			r.PathValue("name"), 200,
		))+
			"; GET /api/sinks lists them")
	case errors.Is(err, store.ErrNoDeadLetter):
		return relay.NewError(relay.CodeNoDeadLetter, "the sink has no dead letter of the delivery "+
			strconv.Quote(relay.Truncate(r.PathValue("id"), 200)))
	case errors.Is(err, ErrConfigured):
		return relay.NewError(relay.CodeInvalidState, "the sink is configured; remove it from the configuration first")
	case errors.Is(err, ErrNotConfigured):
		return relay.NewError(relay.CodeInvalidState, "the sink is not configured on this node: forget it, or "+
			"add it to the configuration")
	case errors.Is(err, ErrAfter):
		const detail = "after is neither the cursor of a stream, an ID such as 1732153000123-0, a time such as " +
			"2026-11-21T04:00:00Z, nor an age such as 2h"
		return relay.NewError(relay.CodeInvalidArgument, detail).WithPointer("/after")
	case errors.Is(err, store.ErrSelection):
		return relay.NewError(relay.CodeInvalidArgument, err.Error())
	}
	if r.Context().Err() == nil {
		o.log.Warn("admin request failed", "path", r.URL.Path, "error", err)
	}
	return relay.NewError(relay.CodeNotReady, err.Error())
}

func tooLarge(maxBody int) error {
	return relay.NewError(relay.CodeTooLarge, "the body exceeds "+strconv.Itoa(maxBody)+" bytes")
}

// readBody reads the body of a request, which [apiHandler.serve] has limited to maxBody bytes.
func readBody(r *http.Request, maxBody int) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, tooLarge(maxBody)
	case err != nil:
		return nil, relay.NewError(relay.CodeInvalidSyntax, "the body could not be read to its end")
	}
	return body, nil
}

// decodeBody decodes the body into request. An empty body is allowed.
func decodeBody(r *http.Request, request any) error {
	body, err := readBody(r, maxRequest)
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	err = dec.Decode(request)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax), errors.Is(err, io.ErrUnexpectedEOF):
		return relay.NewError(relay.CodeInvalidSyntax, "the body is not JSON")
	case err != nil:
		return relay.NewError(relay.CodeInvalidArgument, strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return relay.NewError(relay.CodeInvalidSyntax, "the body has more data after the JSON text")
	}
	return nil
}
