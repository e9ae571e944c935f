// Package adminserver serves operators and their tools. [Health] serves probes and Prometheus without a login.
// [Admin] serves the API of the hubrelay commands and of the web console, and profiles, on a unix socket or with tokens,
// and checks the role of every caller.
//
// The components of the daemon implement [Sinks], [Events], [Sources], [Connections], [Access], [Keys], [Accounts] and
// [AuditLog]. Modules add their routes. Decisions about notifications or deliveries do not belong here.
package adminserver

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"net/url"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/console"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/module"
)

// maxWarning is the maximum length of a warning in a response, in bytes.
const maxWarning = 1024

// Options are the options of [New]. All fields are required unless their comments say otherwise.
type Options struct {
	// Listen is admin.listen. Its host is accepted in the Host header. It is empty for a unix socket.
	Listen string
	// Authenticator identifies callers. Nil rejects every request.
	Authenticator Authenticator
	// Sessions let browsers sign in. Nil on a unix socket, whose callers need no token.
	Sessions *Sessions
	// Node and Version describe this process.
	Node, Version string
	Log           *slog.Logger
	// Catalog contains the topics. Nil means the built-in ones.
	Catalog *relay.Catalog
	// Sinks implements /api/sinks.
	Sinks Sinks
	// Quarantine implements /api/quarantine.
	Quarantine Quarantine
	// Events implements /api/events.
	Events Events
	// Sources implements /api/sources.
	Sources Sources
	// Connections implements /api/connections.
	Connections Connections
	// Relay is the identity of the relay's data. A request that names another one in [adminapi.RelayHeader] is rejected.
	Relay string
	// Routes are the routes of modules.
	Routes []module.AdminRoute
	// Audit records failed authentications and all changes. Nil discards them.
	Audit audit.Recorder
	// Accounts implements /api/accounts.
	Accounts Accounts
	// Access implements /api/keys/{name}/access and /api/streams/explain.
	Access Access
	// Keys implements /api/keys.
	Keys Keys
	// ConfigWarning describes how the running configuration differs from the file, or returns "". It may be nil.
	ConfigWarning func() string
	// AuditLog implements /api/audit.
	AuditLog AuditLog
	// Status implements /api/status, /api/nodes and /api/config.
	Status Status
	// Jobs implements /api/jobs.
	Jobs Jobs
	// AwaitReplicas waits until enough replicas have all changes. It may be nil.
	AwaitReplicas func(context.Context) error
}

// Admin serves the console, /api/ and /debug/pprof/ to operators. It may be used concurrently.
type Admin struct {
	opt      Options
	hosts    hostCheck
	console  *console.Handler
	api      *apiHandler
	mux      *http.ServeMux
	failures *auth.FailureThrottle
	viewers  chan struct{} // has an element for each request of a viewer in progress
}

// MaxConnections is the maximum number of connections of the admin listener. If there are more, idle connections make room, and
// then connections of viewers.
const MaxConnections = 128

// maxViewerRequests is the maximum number of requests of viewers in progress.
const maxViewerRequests = 16

// New returns the handler. [httpserver.Listen] serves it.
func New(o Options) *Admin {
	if o.Authenticator == nil {
		o.Authenticator = new(Tokens)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Audit == nil {
		o.Audit = audit.Discard{}
	}
	if o.Catalog == nil {
		o.Catalog, _ = relay.NewCatalog(nil) // fails only for invalid extra topics
	}
	a := &Admin{
		opt: o, hosts: newHostCheck(o.Listen), console: console.New(), api: newAPIHandler(o), mux: http.NewServeMux(),
		viewers:  make(chan struct{}, maxViewerRequests),
		failures: auth.NewFailureThrottle(),
	}
	handleOperation(a.api, adminapi.ShowSession(), func(r *http.Request, _ adminapi.Empty) (adminapi.Session, error) {
		return a.describeSession(callerFrom(r)), nil
	})
	a.mux.Handle("/api/", a.api.newMux())
	a.mux.HandleFunc("/", notFound)
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

// ServeHTTP handles one request. It first checks the headers that identify web pages, then the caller. Everybody gets the
// files of the console, which contain no data.
func (a *Admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := a.hosts.check(r, "admin.listen"); err != nil {
		rejectRequest(w, r, err)
		return
	}
	isFile := a.console.Has(r.URL.Path)
	if err := checkOrigin(r); err != nil && (!isFile || !isNavigation(r)) {
		rejectRequest(w, r, err)
		return
	}
	hasSessions := a.opt.Sessions != nil && r.URL.Path == adminapi.SessionPath
	switch {
	case isFile:
		endSoon(w, r)
		a.console.ServeHTTP(w, r)
	case hasSessions && r.Method == http.MethodPost:
		a.signIn(w, r)
	case hasSessions && r.Method == http.MethodDelete:
		a.signOut(w, r)
	default:
		a.serveCaller(w, r)
	}
}

// rejectRequest sends an error to a client that may have no rights.
func rejectRequest(w http.ResponseWriter, r *http.Request, err *relay.Error) {
	endSoon(w, r)
	httpserver.WriteError(w, r, err)
}

// endSoon is called before the response to a request without credentials. Its connection makes room for others.
func endSoon(w http.ResponseWriter, r *http.Request) {
	httpserver.EndSoon(w, r)
	skipBody(w, r)
}

// skipBody makes net/http respond without waiting for a body that is not read, and may never end.
func skipBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close")
	}
}

// serveCaller handles a request whose caller must be known.
func (a *Admin) serveCaller(w http.ResponseWriter, r *http.Request) {
	caller, err := a.opt.Authenticator.Authenticate(r)
	if err != nil {
		if err.Code == relay.CodeAuthInvalid && !isSessionCheck(r) {
			err = a.countAuthFailure(w, r, err)
		}
		rejectRequest(w, r, err)
		return
	}
	if relayID := r.Header.Get(adminapi.RelayHeader); relayID != "" && relayID != a.opt.Relay {
		httpserver.WriteError(w, r, relay.NewError(relay.CodeWrongRelay, "this relay has other data (redis.url or "+
			"redis.data_dir, and redis.prefix): check the address and the configuration file of the command"))
		return
	}
	if a.opt.ConfigWarning != nil {
		if warning := a.opt.ConfigWarning(); warning != "" {
			w.Header().Set(adminapi.WarningHeader, url.PathEscape(relay.Truncate(warning, maxWarning)))
		}
	}
	if !caller.Role.Allows(adminapi.RoleOperator) {
		httpserver.AllowEviction(r)
		select {
		case a.viewers <- struct{}{}:
			defer func() { <-a.viewers }()
		default:
			rejectRequest(w, r, relay.NewError(relay.CodeNotReady, "too many requests of viewers are in progress; repeat the request later"))
			return
		}
	}
	a.mux.ServeHTTP(w, withCaller(r, caller))
}

// isSessionCheck reports whether r reads its session without a bearer token, as the console does when it is opened. That is
// no attempt to authenticate.
func isSessionCheck(r *http.Request) bool {
	return r.Method == http.MethodGet && r.URL.Path == adminapi.SessionPath && r.Header.Get("Authorization") == ""
}

// adminOnly requires [adminapi.RoleAdmin], because profiles contain command lines and may contain data of accounts.
func adminOnly(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if rejected := requireRole(r, adminapi.RoleAdmin); rejected != nil {
			rejectRequest(w, r, rejected)
			return
		}
		h(w, r)
	}
}

// withoutWriteTimeout replaces the write timeout of the listener for profiles, which take the time in ?seconds=.
// Package pprof checks the timeout of the server in the context, so the context gets another server.
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
