package admin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/httpd"
)

// DefaultReadyTimeout bounds the question whether the daemon is ready.
const DefaultReadyTimeout = 2 * time.Second

// Options are what the admin listener shows.
type Options struct {
	Metrics *Metrics
	// Ready returns nil while the daemon can do its work; it must honour ctx. Nil means always ready.
	Ready func(ctx context.Context) error
	// ReadyTimeout bounds Ready; zero means [DefaultReadyTimeout].
	ReadyTimeout time.Duration
	// Listen is admin.listen, host:port; its host is accepted in the Host header beside addresses and names without a dot.
	Listen string
	Log    *slog.Logger
	// Sinks is what /api/ works on; it returns nil while the daemon is starting. Where it is nil there is no /api/.
	Sinks func() Sinks
	// Sources is what /api/sources shows; it returns nil while the daemon is starting.
	Sources func() Sources
	// Connections is what /api/connections shows; it returns nil while the daemon is starting.
	Connections func() Connections
	// Inventory is what /api/inventory works on; it returns nil while the daemon is starting, and is nil where the daemon
	// does not migrate.
	Inventory func() Inventory
}

// Admin answers on the admin listener. It may be used concurrently.
type Admin struct {
	opt      Options
	host     string
	mux      *http.ServeMux
	draining atomic.Bool
}

// New returns the handler; [httpd.Listen] serves it.
func New(o Options) *Admin {
	if o.ReadyTimeout <= 0 {
		o.ReadyTimeout = DefaultReadyTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		host = o.Listen
	}
	a := &Admin{opt: o, host: strings.ToLower(host), mux: http.NewServeMux()}
	a.mux.HandleFunc("/", a.index)
	a.Handle("/healthz", http.HandlerFunc(alive))
	a.Handle("/readyz", http.HandlerFunc(a.ready))
	if o.Metrics != nil {
		a.Handle("/metrics", o.Metrics.Handler())
	}
	if o.Sinks != nil {
		a.mux.Handle("/api/", newOperations(o).mux)
	}
	a.mux.HandleFunc("/debug/pprof/", unhurried(pprof.Index))
	a.mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	a.mux.HandleFunc("/debug/pprof/profile", unhurried(pprof.Profile))
	a.mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	a.mux.HandleFunc("/debug/pprof/trace", unhurried(pprof.Trace))
	return a
}

// Handle adds a page that answers GET and HEAD. It must be called before the handler is served.
func (a *Admin) Handle(path string, h http.Handler) {
	a.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			httpd.WriteError(w, r, relay.NewError(relay.CodeMethod, "only GET and HEAD are possible here"))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// Drain makes /readyz say no from now on, so that a balancer sends nobody to a daemon that is about to stop.
func (a *Admin) Drain() { a.draining.Store(true) }

// ServeHTTP answers one request. A Host that is neither an address nor a name without a dot nor the configured name is
// refused: it could be a web page that has pointed its own name here (DNS rebinding). Nobody can register a name
// without a dot, and containers call each other by such.
func (a *Admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !a.knownHost(r.Host) {
		httpd.WriteError(w, r, relay.NewError(relay.CodePermissions,
			"the admin listener does not answer to the name "+strconv.Quote(relay.Clip(r.Host, 200))+
				"; use its address or localhost, or write this name into admin.listen"))
		return
	}
	a.mux.ServeHTTP(w, r)
}

func (a *Admin) knownHost(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	return host == a.host || !strings.Contains(host, ".") || net.ParseIP(host) != nil
}

func (a *Admin) index(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" {
		httpd.WriteError(w, r, relay.NewError(relay.CodeNoURI,
			"there is nothing at "+strconv.Quote(relay.Clip(r.URL.Path, 200))))
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("hubrelay admin\n\n/metrics\n/healthz\n/readyz\n/api/sinks\n/api/sources\n/api/connections\n/debug/pprof/\n"))
}

func alive(w http.ResponseWriter, _ *http.Request) { status(w, http.StatusOK, "alive", "") }

func (a *Admin) ready(w http.ResponseWriter, r *http.Request) {
	if err := a.check(r.Context()); err != nil {
		w.Header().Set("Retry-After", "1")
		status(w, http.StatusServiceUnavailable, "not ready", err.Error())
		return
	}
	status(w, http.StatusOK, "ready", "")
}

func (a *Admin) check(ctx context.Context) error {
	if a.draining.Load() {
		return errors.New("the daemon is stopping")
	}
	if a.opt.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.opt.ReadyTimeout)
	defer cancel()
	answer := make(chan error, 1) // so that a Ready that ignores its context leaves no waiting request
	go func() { answer <- a.opt.Ready(ctx) }()
	return a.await(ctx, answer)
}

func (a *Admin) await(ctx context.Context, answer <-chan error) error {
	if err, there := relay.Await(ctx, answer); there {
		return err
	}
	return errors.New("the probe did not come back within " + a.opt.ReadyTimeout.String())
}

func status(w http.ResponseWriter, code int, state, reason string) {
	body, _ := json.Marshal(struct { // two strings always encode
		Status string `json:"status"`
		Reason string `json:"reason,omitempty"`
	}{state, reason})
	httpd.WriteJSON(w, code, append(body, '\n'))
}

// unhurried lifts the listener's write time-out for profiles, which take as long as ?seconds= says. pprof itself asks
// the server it finds in the context.
func unhurried(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		seconds, err := strconv.Atoi(r.FormValue("seconds"))
		if err != nil || seconds < 0 || seconds > 600 {
			seconds = 30
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Duration(seconds+30) * time.Second))
		h(w, r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, &http.Server{})))
	}
}
