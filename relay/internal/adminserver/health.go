package adminserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
)

// DefaultReadyTimeout is the default time limit of the readiness check.
const DefaultReadyTimeout = 2 * time.Second

// HealthOptions are the options of [NewHealth].
type HealthOptions struct {
	Metrics *metrics.Metrics
	// ReadyTimeout is the time limit of the readiness check. Zero means [DefaultReadyTimeout].
	ReadyTimeout time.Duration
	// Warning returns a warning for /readyz?verbose, or "". It must not contain data of accounts. It may be nil.
	Warning func() string
	// Listen is health.listen. On a loopback address the Host header is checked; see [Health.ServeHTTP].
	Listen string
}

// Health serves /healthz, /readyz and /metrics. They contain no data of accounts. It may be used concurrently.
type Health struct {
	opt   HealthOptions
	hosts hostCheck
	mux   *http.ServeMux

	mu    sync.Mutex
	ready func(ctx context.Context) error
}

// NewHealth returns the handler. [httpserver.Listen] serves it.
func NewHealth(o HealthOptions) *Health {
	if o.ReadyTimeout <= 0 {
		o.ReadyTimeout = DefaultReadyTimeout
	}
	h := &Health{
		opt: o, hosts: newHostCheck(o.Listen), mux: http.NewServeMux(),
		ready: func(context.Context) error { return errors.New("the node is starting") },
	}
	h.mux.HandleFunc("/", indexPage("hubrelay health\n\n/healthz\n/readyz\n/metrics\n"))
	h.mux.Handle("/healthz", readOnly(http.HandlerFunc(serveHealthz)))
	h.mux.Handle("/readyz", readOnly(http.HandlerFunc(h.serveReadyz)))
	if o.Metrics != nil {
		h.mux.Handle("/metrics", readOnly(o.Metrics.Handler()))
	}
	return h
}

// SetReady sets the check of /readyz. It returns nil if the daemon is ready, and must honor ctx. Until the first call the
// daemon is starting.
func (h *Health) SetReady(check func(ctx context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready = check
}

// Drain makes /readyz return 503 from now on, so load balancers stop sending clients to a node that is about to
// stop.
func (h *Health) Drain() {
	h.SetReady(func(context.Context) error { return errors.New("the node is stopping") })
}

// ServeHTTP handles one request. On loopback it rejects unknown host names, because a web page could point its own
// name at the address (DNS rebinding). On other addresses the page could also connect directly.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	endSoon(w, r)
	if h.hosts.loopback {
		if err := h.hosts.check(r, "health.listen"); err != nil {
			httpserver.WriteError(w, r, err)
			return
		}
	}
	h.mux.ServeHTTP(w, r)
}

func serveHealthz(w http.ResponseWriter, _ *http.Request) {
	writeStatus(w, http.StatusOK, healthStatus{Status: "alive"})
}

func (h *Health) serveReadyz(w http.ResponseWriter, r *http.Request) {
	if err := h.check(r.Context()); err != nil {
		w.Header().Set("Retry-After", "1")
		writeStatus(w, http.StatusServiceUnavailable, healthStatus{Status: "not ready", Reason: err.Error()})
		return
	}
	s := healthStatus{Status: "ready"}
	if h.opt.Warning != nil && r.URL.Query().Has("verbose") {
		s.Warning = h.opt.Warning()
	}
	writeStatus(w, http.StatusOK, s)
}

func (h *Health) check(ctx context.Context) error {
	h.mu.Lock()
	ready := h.ready
	h.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, h.opt.ReadyTimeout,
		errors.New("the readiness check did not finish within "+h.opt.ReadyTimeout.String()))
	defer cancel()
	result := make(chan error, 1) // buffered, so a check that ignores ctx does not leak the goroutine
	go func() { result <- ready(ctx) }()
	err, late := await.Value(ctx, result)
	if late == nil && err != nil && errors.Is(err, ctx.Err()) {
		late = context.Cause(ctx)
	}
	return cmp.Or(late, err)
}

// healthStatus is a response of /healthz and /readyz.
type healthStatus struct {
	Status string `json:"status"`
	// Reason is set if the daemon is not ready.
	Reason string `json:"reason,omitempty"`
	// Warning is only in responses to requests with the parameter verbose.
	Warning string `json:"warning,omitempty"`
}

func writeStatus(w http.ResponseWriter, code int, s healthStatus) {
	body, _ := json.Marshal(s) // strings always marshal
	httpserver.WriteJSON(w, code, append(body, '\n'))
}

// readOnly allows only GET and HEAD.
func readOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			httpserver.WriteError(w, r, relay.NewError(relay.CodeMethod, "only GET and HEAD are allowed here"))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// indexPage serves a text at / and 404 on all other paths.
func indexPage(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			notFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(text))
	}
}
