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
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

// maxRequest bounds the body of a request to the API.
const maxRequest = 1 << 20

// apiHandler answers /api/.
type apiHandler struct {
	sinks     func() Sinks
	inventory func() Inventory // nil where the daemon does not migrate
	log       *slog.Logger
	mux       *http.ServeMux
}

// dataHandler returns what is answered under "data", and the status.
type dataHandler func(r *http.Request) (status int, data any, err error)

// sinkHandler is an answerer that works on the sinks.
type sinkHandler func(s Sinks, r *http.Request) (status int, data any, err error)

func newOperations(opt Options) *apiHandler {
	o := &apiHandler{
		sinks: opt.Sinks, inventory: opt.Inventory,
		log: opt.Log, mux: http.NewServeMux(),
	}
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
	o.handleInventory("/api/inventory")
	o.handleSources("/api/sources", opt.Sources)
	o.handleConnections("/api/connections", opt.Connections)
	return o
}

func notFound(w http.ResponseWriter, r *http.Request) {
	httpserver.WriteError(w, r, relay.NewError(relay.CodeNoURI, "there is nothing at "+strconv.Quote(relay.Truncate(r.URL.Path, 200))))
}

func (o *apiHandler) get(pattern string, op sinkHandler) {
	o.handle(pattern, maxRequest, adminapi.RoleViewer, o.onSinks(op), http.MethodGet, http.MethodHead)
}

func (o *apiHandler) post(pattern string, op sinkHandler) {
	o.handle(pattern, maxRequest, adminapi.RoleOperator, o.onSinks(op), http.MethodPost)
}

// onSinks gives a request the sinks, if there are any yet.
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

// handle answers requests whose body has at most so many bytes. Changes require the role change, reads [adminapi.RoleViewer].
func (o *apiHandler) handle(pattern string, most int64, change adminapi.Role, op dataHandler, methods ...string) {
	o.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			allow := strings.Join(methods, ", ")
			w.Header().Set("Allow", allow)
			httpserver.WriteError(w, r, relay.NewError(relay.CodeMethod, "possible here: "+allow))
			return
		}
		needed := change
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			needed = adminapi.RoleViewer
		}
		if refused := requireRole(r, needed); refused != nil {
			httpserver.WriteError(w, r, refused)
			return
		}
		if needed != adminapi.RoleViewer {
			o.log.Info("admin request", "caller", callerOf(r).Name, "method", r.Method, "path", r.URL.Path)
		}
		o.serve(w, r, most, op)
	})
}

func (o *apiHandler) serve(w http.ResponseWriter, r *http.Request, most int64, op dataHandler) {
	r.Body = http.MaxBytesReader(w, r.Body, most)
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		// A replay of a million takes as long as it takes; it ends with the connection.
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(time.Hour))
		_ = control.SetWriteDeadline(time.Now().Add(time.Hour))
	}
	status, data, err := op(r)
	if err != nil {
		httpserver.WriteError(w, r, o.clientError(r, err))
		return
	}
	body := map[string]any{"data": data}
	if page, ok := data.(pageResponse); ok {
		body = map[string]any{"data": page.data, "next": page.next}
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		httpserver.WriteError(w, r, httpserver.InternalError(r, o.log, err))
		return
	}
	httpserver.WriteJSON(w, status, text.Bytes())
}

// clientError turns the error of an operation into what the caller sees. What is none of the known errors comes from Redis.
func (o *apiHandler) clientError(r *http.Request, err error) *relay.Error {
	var known *relay.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, ErrNoSink):
		return relay.NewError(relay.CodeNoSink, "there is no sink "+strconv.Quote(relay.Truncate(r.PathValue("name"), 200))+
			"; GET /api/sinks lists them")
	case errors.Is(err, delivery.ErrNoDeadLetter):
		return relay.NewError(relay.CodeNoDeadLetter, "the sink has no dead letter of the delivery "+
			strconv.Quote(relay.Truncate(r.PathValue("id"), 200)))
	case errors.Is(err, ErrConfigured):
		return relay.NewError(relay.CodeInvalidState, "the sink is configured; remove it from the configuration first")
	case errors.Is(err, ErrNotConfigured):
		return relay.NewError(relay.CodeInvalidState, "the sink is not configured on this node any more: forget it, or "+
			"put it back into the configuration")
	case errors.Is(err, ErrAfter):
		return relay.NewError(relay.CodeInvalidArgument,
			"after is neither a cursor such as 1732153000123-0 nor a time such as 2026-11-21T04:00:00Z").WithPointer("/after")
	case errors.Is(err, delivery.ErrSelection):
		return relay.NewError(relay.CodeInvalidArgument, err.Error())
	}
	if r.Context().Err() == nil {
		o.log.Warn("an operation failed", "path", r.URL.Path, "error", err)
	}
	return relay.NewError(relay.CodeNotReady, err.Error())
}

func tooLarge(most int) error {
	return relay.NewError(relay.CodeTooLarge, "the body may have "+strconv.Itoa(most)+" bytes")
}

func bodyIncomplete() error {
	return relay.NewError(relay.CodeInvalidSyntax, "the body could not be read to its end")
}

// read decodes the body, which may be empty, into request.
func read(r *http.Request, request any) error {
	body, err := io.ReadAll(r.Body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge(maxRequest)
	case err != nil:
		return bodyIncomplete()
	case len(bytes.TrimSpace(body)) == 0:
		return nil
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
		return relay.NewError(relay.CodeInvalidSyntax, "the body goes on behind the JSON text")
	}
	return nil
}
