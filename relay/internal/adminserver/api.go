package adminserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/durations"
	"github.com/hubrelay/hubrelay/internal/strictjson"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

// maxRequest is the maximum size of a request body.
const maxRequest = 1 << 20

// apiHandler handles /api/.
type apiHandler struct {
	log     *slog.Logger
	audit   audit.Recorder
	catalog *relay.Catalog
	// awaitReplicas may be nil.
	awaitReplicas func(context.Context) error
	routes        map[string]map[string]http.HandlerFunc // by path and method
}

func newAPIHandler(opt Options) *apiHandler {
	h := &apiHandler{
		log: opt.Log, audit: opt.Audit, catalog: opt.Catalog, awaitReplicas: opt.AwaitReplicas,
		routes: make(map[string]map[string]http.HandlerFunc),
	}
	h.handleSinks(opt.Sinks)
	searches := newSearchSlots()
	h.handleDeadLetters(opt.Sinks, searches)
	h.handleQuarantine(opt.Quarantine, searches)
	handleOperation(h, adminapi.SearchEvents(), withLimit(searches, withComponent(opt.Events, searchEvents)))
	handleOperation(h, adminapi.ShowEvent(), withLimit(searches, withComponent(opt.Sinks, showEvent)))
	handleOperation(h, adminapi.ListDeliveries(), withLimit(searches, withComponent(opt.Sinks, listDeliveries)))
	handleOperation(h, adminapi.RetryDeliveries(), withComponent(opt.Sinks, retryDeliveries))
	handleOperation(h, adminapi.DropDeliveries(), withComponent(opt.Sinks, dropDeliveries))
	handleOperation(h, adminapi.ListSources(), withComponent(opt.Sources, listSources))
	handleOperation(h, adminapi.ListConnections(), withComponent(opt.Connections, listConnections))
	handleOperation(h, adminapi.ListAudit(), withLimit(searches, withComponent(opt.AuditLog, searchAuditLog)))
	h.handleKeys(opt.Keys)
	handleOperation(h, adminapi.CheckKey(), withComponent(opt.Access, checkKey))
	handleOperation(h, adminapi.ExplainStream(), withLimit(searches, withComponent(opt.Access, explainStream)))
	handleOperation(h, adminapi.ListJobs(), withComponent(opt.Jobs, listJobs))
	handleOperation(h, adminapi.ShowJob(), withComponent(opt.Jobs, showJob))
	handleOperation(h, adminapi.CreateJob(), withComponent(opt.Jobs, createJob))
	handleOperation(h, adminapi.CancelJob(), withComponent(opt.Jobs, cancelJob))
	handleOperation(h, adminapi.ShowStatus(), withComponent(opt.Status, showStatus))
	handleOperation(h, adminapi.ListNodes(), withComponent(opt.Status, listNodes))
	handleOperation(h, adminapi.ShowConfig(), withComponent(opt.Status, showConfig))
	handleOperation(h, adminapi.ShowConfigVersion(), withComponent(opt.Status, showConfigVersion))
	handleOperation(h, adminapi.EraseAccount(), withComponent(opt.Accounts, eraseAccount))
	h.routes["/api/openapi.yaml"] = map[string]http.HandlerFunc{http.MethodGet: serveOpenAPI, http.MethodHead: serveOpenAPI}
	for _, m := range opt.Routes {
		h.registerHandler(m.Operation, m.MaxBody, func(r *http.Request) (any, error) {
			body, err := readBody(r, m.MaxBody)
			if err != nil {
				return nil, err
			}
			data, err := m.Handle(r, body)
			return adminapi.Envelope[any]{Data: data}, err
		})
	}
	return h
}

// newMux returns the handler of all operations.
func (h *apiHandler) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/", notFound)
	for path, methods := range h.routes {
		allow := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			handler, ok := methods[r.Method]
			if !ok {
				w.Header().Set("Allow", allow)
				rejectRequest(w, r, relay.NewError(relay.CodeMethod, "allowed here: "+allow))
				return
			}
			handler(w, r)
		})
	}
	return mux
}

// serveOpenAPI sends the description of all operations. Callers of all roles may read it.
func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = io.WriteString(w, adminapi.OpenAPI()) // fails only if the client has disconnected
}

func notFound(w http.ResponseWriter, r *http.Request) {
	rejectRequest(w, r,
		relay.NewError(relay.CodeNoURI, "there is nothing at "+strconv.Quote(relay.Truncate(r.URL.Path, 200))))
}

// handleOperation registers the handler of an operation.
func handleOperation[Request, Response any](
	h *apiHandler, op adminapi.Operation[Request, Response], f func(*http.Request, Request) (Response, error),
) {
	h.registerHandler(op.Description, maxRequest, func(r *http.Request) (any, error) {
		request, err := decodeRequest[Request](r)
		if err != nil {
			return nil, err
		}
		if filter, ok := any(request).(adminapi.HasTopics); ok {
			if _, err := httpserver.ParseTopics(h.catalog, splitTopics(filter.TopicPatterns())); err != nil {
				return nil, err
			}
		}
		response, err := f(r, request)
		if page, ok := any(response).(adminapi.WholeBody); ok {
			return page.Body(), err
		}
		return adminapi.Envelope[Response]{Data: response}, err
	})
}

// withComponent returns a handler that calls f with a component of the daemon.
func withComponent[Component, Request, Response any](
	c Component, f func(Component, *http.Request, Request) (Response, error),
) func(*http.Request, Request) (Response, error) {
	return func(r *http.Request, request Request) (Response, error) { return f(c, r, request) }
}

// Searches read much from Redis, which delays deliveries and publishing.
const (
	maxSearches   = 2 // at the same time, of viewers, and again of others
	maxSearchWait = 10 * time.Second
)

// searchSlots has an element for each running search.
type searchSlots struct{ viewers, others chan struct{} }

func newSearchSlots() searchSlots {
	return searchSlots{make(chan struct{}, maxSearches), make(chan struct{}, maxSearches)}
}

// withLimit returns a handler that runs f while it holds one of the slots. It returns 503.not-ready if none becomes free.
func withLimit[Request, Response any](
	s searchSlots, f func(*http.Request, Request) (Response, error),
) func(*http.Request, Request) (Response, error) {
	return func(r *http.Request, request Request) (response Response, err error) {
		slots := s.viewers
		if callerFrom(r).Role.Allows(adminapi.RoleOperator) {
			slots = s.others
		}
		ctx, cancel := context.WithTimeout(r.Context(), maxSearchWait)
		defer cancel()
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			if err := r.Context().Err(); err != nil {
				return response, err
			}
			return response, relay.NewError(relay.CodeNotReady, "too many searches are running; repeat the request later")
		}
		defer func() { <-slots }()
		return f(r, request)
	}
}

// registerHandler registers a handler for requests with a body of up to maxBody bytes. It returns the body of the response.
func (h *apiHandler) registerHandler(op adminapi.Description, maxBody int, f func(*http.Request) (any, error)) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		if err := requireRole(r, op.Role); err != nil {
			h.recordRequest(r, op, string(err.Code))
			rejectRequest(w, r, err)
			return
		}
		if op.Method == http.MethodGet {
			skipBody(w, r)
			h.serve(w, r, maxBody, f)
			return
		}
		r = withAuditDetail(r)
		result := h.serve(w, r, maxBody, h.withReplication(op, f))
		h.log.Info("admin request", "actor", actorOf(r), "action", op.Name, "path", r.URL.Path,
			"result", result)
		h.recordRequest(r, op, result)
	}
	methods := h.routes[op.Path]
	if methods == nil {
		methods = make(map[string]http.HandlerFunc)
		h.routes[op.Path] = methods
	}
	methods[op.Method] = handler
	if op.Method == http.MethodGet {
		methods[http.MethodHead] = handler
	}
}

// withReplication returns a handler that calls f, and reports a change as successful only when a failover cannot undo it.
func (h *apiHandler) withReplication(op adminapi.Description, f func(*http.Request) (any, error)) func(*http.Request) (any, error) {
	if h.awaitReplicas == nil || op.SkipsReplicas {
		return f
	}
	return func(r *http.Request) (any, error) {
		body, err := f(r)
		// A dry run has changed nothing.
		if replayed, ok := body.(adminapi.Envelope[adminapi.ReplayResult]); err != nil || ok && replayed.Data.DryRun {
			return body, err
		}
		return body, h.awaitReplicas(r.Context())
	}
}

// serve writes the response and returns its result for the audit log.
func (h *apiHandler) serve(
	w http.ResponseWriter, r *http.Request, maxBody int, f func(*http.Request) (any, error),
) (result string) {
	r.Body = http.MaxBytesReader(w, r.Body, int64(maxBody))
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(bodyTime + time.Duration(maxBody/bodyRate)*time.Second))
		_ = control.SetWriteDeadline(time.Now().Add(time.Hour))
		// Replays may take long. They end when the connection is closed.
		r.Body = &endingBody{r.Body, func() { _ = control.SetReadDeadline(time.Now().Add(time.Hour)) }}
	}
	body, err := f(r)
	if err != nil {
		public := h.clientError(r, err)
		httpserver.WriteError(w, r, public)
		detail := auditDetail(r)
		*detail = strings.TrimPrefix(*detail+"; "+public.Detail, "; ")
		return string(public.Code)
	}
	return h.writeResponse(w, r, body)
}

// A body must arrive within bodyTime, plus a second per bodyRate bytes of its maximum size. It holds one of few connections.
const (
	bodyTime = 20 * time.Second
	bodyRate = 256 << 10
)

// endingBody is a body that calls ended at its end.
type endingBody struct {
	io.ReadCloser
	ended func()
}

func (b *endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended()
	}
	return n, err
}

// writeResponse writes the response of a successful request and returns its result for the audit log.
func (h *apiHandler) writeResponse(w http.ResponseWriter, r *http.Request, body any) (result string) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(body); err != nil {
		public := httpserver.InternalError(r, h.log, err)
		httpserver.WriteError(w, r, public)
		return string(public.Code)
	}
	httpserver.WriteJSON(w, http.StatusOK, text.Bytes())
	return audit.ResultOK
}

// clientError converts the error of an operation for the client. Unknown errors come from Redis.
func (h *apiHandler) clientError(r *http.Request, err error) *relay.Error {
	var known *relay.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, store.ErrNoDeadLetter):
		return relay.NewError(relay.CodeNoDeadLetter, "the sink has no dead letter of the delivery "+
			strconv.Quote(relay.Truncate(r.PathValue("id"), 200))+"; GET /api/sinks/{name}/deadletters lists all of them")
	case errors.Is(err, history.ErrInvalidCursor):
		return newCursorError()
	case errors.Is(err, store.ErrSelection):
		return relay.NewError(relay.CodeInvalidArgument, err.Error())
	}
	if r.Context().Err() == nil {
		h.log.Warn("admin request failed", "path", r.URL.Path, "error", err)
	}
	return relay.NewError(relay.CodeNotReady, describeLostReply(r, err).Error())
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
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, relay.NewError(relay.CodeInvalidSyntax, "the body did not arrive in time")
	case err != nil:
		return nil, relay.NewError(relay.CodeInvalidSyntax, "the body could not be read to its end")
	}
	return body, nil
}

// decodeRequest decodes the query of a GET, or the body of another request.
func decodeRequest[Request any](r *http.Request) (request Request, err error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return request, decodeBody(r, maxRequest, &request)
	}
	single, repeated := adminapi.QueryNames[Request]()
	query, rejected := httpserver.ParseQuery(r, httpserver.QueryNames{Single: single, Repeated: repeated})
	if rejected != nil {
		return request, rejected
	}
	request, err = adminapi.DecodeQuery[Request](query)
	var number *adminapi.NumberError
	if errors.As(err, &number) {
		err = relay.NewError(relay.CodeInvalidArgument, err.Error()).WithExtra("parameter", number.Parameter)
	}
	return request, err
}

// decodeBody decodes the body, which is limited to maxBody bytes, into request. An empty body is allowed.
func decodeBody(r *http.Request, maxBody int, request any) error {
	body, err := readBody(r, maxBody)
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return err
	}
	err = strictjson.Decode(body, request)
	var syntax *strictjson.SyntaxError
	var field *relay.FieldError
	switch {
	case errors.As(err, &syntax):
		return relay.NewError(relay.CodeInvalidSyntax, "the body cannot be read: "+err.Error())
	case errors.As(err, &field):
		return relay.NewError(relay.CodeInvalidArgument, err.Error()).WithPointer("/" + strings.ReplaceAll(field.Field, ".", "/"))
	case err != nil:
		return relay.NewError(relay.CodeInvalidArgument, "the body cannot be read: "+err.Error())
	}
	return nil
}

// splitTopics splits lists of patterns that are separated by commas.
func splitTopics(lists []string) (topics []string) {
	for topic := range strings.SplitSeq(strings.Join(lists, ","), ",") {
		if topic = strings.TrimSpace(topic); topic != "" {
			topics = append(topics, topic)
		}
	}
	return topics
}

// newCursorError returns the error for a value of after that is not a cursor.
func newCursorError() *relay.Error {
	return relay.NewError(relay.CodeInvalidArgument, "after is not the value of next in an earlier response").
		WithExtra("parameter", "after")
}

// parseTimeParameter parses a time (RFC 3339) or an age such as 24h. An empty text is the zero time.
func parseTimeParameter(name, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, ok := parseTime(text, now)
	if !ok {
		return t, relay.NewError(relay.CodeInvalidArgument, name+
			" is neither a time such as 2026-11-21T04:00:00Z nor an age such as 24h").WithExtra("parameter", name)
	}
	return t, nil
}

// parseTime parses a time (RFC 3339) or an age such as 24h.
func parseTime(text string, now time.Time) (time.Time, bool) {
	if age, err := durations.Parse(text); err == nil && age > 0 {
		return now.Add(-age), true
	}
	t, err := time.Parse(time.RFC3339, text)
	return t, err == nil
}
