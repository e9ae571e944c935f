package adminserver

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

// Options configure [New].
type Options struct {
	// Listen is admin.listen; its host is accepted in the Host header. Empty for a unix socket.
	Listen string
	// Authenticator identifies callers. Nil refuses every request.
	Authenticator Authenticator
	Log           *slog.Logger
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

// Admin serves /api/ and /debug/pprof/ to operators. It may be used concurrently.
type Admin struct {
	opt   Options
	hosts hostCheck
	mux   *http.ServeMux
}

// New returns the handler; [httpserver.Listen] serves it.
func New(o Options) *Admin {
	if o.Authenticator == nil {
		o.Authenticator = new(Tokens)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	a := &Admin{opt: o, hosts: newHostCheck(o.Listen), mux: http.NewServeMux()}
	a.mux.HandleFunc("/", indexPage("hubrelay admin\n\n/api/sinks\n/api/sources\n/api/connections\n/api/inventory\n/debug/pprof/\n"))
	if o.Sinks != nil {
		a.mux.Handle("/api/", newOperations(o).mux)
	}
	for path, handler := range map[string]http.HandlerFunc{
		"/debug/pprof/":        withoutWriteTimeout(pprof.Index),
		"/debug/pprof/cmdline": pprof.Cmdline,
		"/debug/pprof/profile": withoutWriteTimeout(pprof.Profile),
		"/debug/pprof/symbol":  pprof.Symbol,
		"/debug/pprof/trace":   withoutWriteTimeout(pprof.Trace),
	} {
		a.mux.HandleFunc(path, adminOnly(handler))
	}
	return a
}

// ServeHTTP answers one request. First it checks the headers that identify web pages, then the caller.
func (a *Admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	caller, refused := a.admit(r)
	if refused != nil {
		httpserver.WriteError(w, r, refused)
		return
	}
	a.mux.ServeHTTP(w, withCaller(r, caller))
}

func (a *Admin) admit(r *http.Request) (Caller, *relay.Error) {
	if refused := a.hosts.check(r, "admin.listen"); refused != nil {
		return Caller{}, refused
	}
	if refused := checkOrigin(r); refused != nil {
		return Caller{}, refused
	}
	return a.opt.Authenticator.Authenticate(r)
}

// adminOnly requires [adminapi.RoleAdmin]: profiles show command lines and may hold data of tenants.
func adminOnly(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if refused := requireRole(r, adminapi.RoleAdmin); refused != nil {
			httpserver.WriteError(w, r, refused)
			return
		}
		h(w, r)
	}
}

// withoutWriteTimeout lifts the listener's write time-out for profiles, which take as long as ?seconds= says. pprof itself asks
// the server it finds in the context.
func withoutWriteTimeout(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		seconds, err := strconv.Atoi(r.FormValue("seconds"))
		if err != nil || seconds < 0 || seconds > 600 {
			seconds = 30
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Duration(seconds+30) * time.Second))
		h(w, r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, &http.Server{})))
	}
}
