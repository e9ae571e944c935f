package publicapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
)

// DefaultMaxBody is the largest body of a request in bytes where Options name none: 1 MiB.
const DefaultMaxBody = 1 << 20

// Tokens issues tokens, uses them up for websockets and holds them for event streams; [auth.TokenStore] is the store. Methods
// may be called concurrently.
type Tokens interface {
	Issue(ctx context.Context, g auth.Grant) (string, error)
	Get(ctx context.Context, token string) (auth.Grant, error)
	Consume(ctx context.Context, token string) (auth.Grant, error)
	KeepAlive(ctx context.Context, token string) (g auth.Grant, release func(), err error)
}

// Publisher stores what is published, all or nothing, and returns the notifications' ids in order. A *relay.Error
// reaches the client as it is; any other error is logged and becomes 500.unknown. It is called concurrently.
// [ingest.Publisher] is one.
type Publisher interface {
	Publish(ctx context.Context, p ingest.Publication) ([]string, error)
}

// Streams serves a websocket or an event stream whose request is valid; [hub.Hub] implements it. On an error nothing
// was written. Both methods are called concurrently and may return while the hijacked connection stays open.
type Streams interface {
	ServeWebSocket(w http.ResponseWriter, r *http.Request, s hub.Subscription) *relay.Error
	ServeEvents(w http.ResponseWriter, r *http.Request, s hub.Subscription) *relay.Error
}

// Observer counts. Its methods are called concurrently and must not block.
type Observer interface {
	Refused(code relay.Code)
}

// Options are what the interface stands on. All but Migrations, Instance, PublicURL, AllowedOrigins, MaxBody, Log and
// Observer are required.
type Options struct {
	Keyring   *auth.Keyring
	Tokens    Tokens
	Publisher Publisher
	Streamer  Streams
	// Migrations is nil where this relay has no driver.
	Migrations Migrations
	// Catalog is what topics= is checked against.
	Catalog *relay.Catalog
	// Instance names this relay to others that take its notifications over, so that none goes round in a circle.
	Instance string
	// PublicURL is the relay's address as clients see it, for the Link header; empty to take it from each request.
	PublicURL string
	// AllowedOrigins are the origins of other hosts whose pages may connect, `https://host[:port]` or "*".
	AllowedOrigins []string
	// MaxBody bounds a request's body in bytes; zero means [DefaultMaxBody].
	MaxBody  int64
	Log      *slog.Logger
	Observer Observer
}

// API answers public requests. It may be used concurrently.
type API struct {
	opt         Options
	publicURL   *url.URL // nil where PublicURL is empty
	origins     origins
	routes      map[string]route // by path
	paramRoutes []route          // those with names in their path
	bodies      sync.Pool
	// drainTime bounds how long a refused request's body is read.
	drainTime time.Duration

	unavailableLog logThrottle // of what is away
	originLog      logThrottle // pages of other origins
}

// handler answers, or returns an error before it has written anything. Names are what stands in the path for those of
// the route's pattern.
type handler func(w http.ResponseWriter, r *http.Request, names []string) *relay.Error

// withoutParams is the handler of a path without names.
func withoutParams(h func(http.ResponseWriter, *http.Request) *relay.Error) handler {
	return func(w http.ResponseWriter, r *http.Request, _ []string) *relay.Error { return h(w, r) }
}

type route struct {
	pattern string
	methods map[string]handler
	allow   string
}

// The paths of the public interface.
const (
	pathNotifications = "/v1/hubs/current/notifications"
	pathOpenAPI       = "/openapi.yaml"
	pathAsyncAPI      = "/asyncapi.yaml"
)

// New checks the options and returns the handler. Wrap it with [httpserver.Listen], which sets the time-outs and recovers
// panics.
func New(o Options) (*API, error) {
	if o.MaxBody <= 0 {
		o.MaxBody = DefaultMaxBody
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	a := &API{opt: o, drainTime: maxDrainTime}
	a.bodies.New = func() any { return new(requestBuffer) }
	var err error
	if a.publicURL, err = parsePublicURL(o.PublicURL); err != nil {
		return nil, err
	}
	if a.origins, err = newOrigins(o.AllowedOrigins, a.publicURL); err != nil {
		return nil, err
	}
	a.routes = map[string]route{
		pathNotifications: newRoute(withoutParams(a.serveNotifications), "GET", "HEAD").handle(withoutParams(a.publish), "POST"),
		pathOpenAPI:       newRoute(withoutParams(serveDocument(openAPI)), "GET", "HEAD"),
		pathAsyncAPI:      newRoute(withoutParams(serveDocument(asyncAPI)), "GET", "HEAD"),
	}
	a.paramRoutes = []route{
		newRoute(a.listTasks, "GET", "HEAD").handle(a.startMigration, "POST").forPattern(pathTasks),
		newRoute(a.showJob, "GET", "HEAD").forPattern(pathJob),
	}
	return a, nil
}

func newRoute(h handler, methods ...string) route {
	return route{methods: map[string]handler{}}.handle(h, methods...)
}

func (rt route) handle(h handler, methods ...string) route {
	for _, m := range methods {
		rt.methods[m] = h
		rt.allow += m + ", "
	}
	return rt
}

func (rt route) forPattern(pattern string) route {
	rt.pattern = pattern
	return rt
}

// matchRoute finds what is at a path, and what stands in it for the names of its pattern.
func (a *API) matchRoute(r *http.Request) (route, []string, bool) {
	if rt, ok := a.routes[r.URL.Path]; ok {
		return rt, nil, true
	}
	path := r.URL.EscapedPath()
	for _, rt := range a.paramRoutes {
		if names, ok := matchPattern(rt.pattern, path); ok {
			return rt, names, true
		}
	}
	return route{}, nil, false
}

func (rt route) allowHeader() string { return rt.allow + http.MethodOptions }

// ServeHTTP answers one request. Paths are taken as they come: nothing is cleaned or redirected.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rt, names, ok := a.matchRoute(r)
	if !ok {
		a.writeError(w, r, relay.NewError(relay.CodeNoURI,
			"there is nothing at "+strconv.Quote(relay.Truncate(r.URL.Path, 200))+"; GET "+pathOpenAPI+" lists what there is"))
		return
	}
	cross := a.origins.allowCORS(w, r)
	h, ok := rt.methods[r.Method]
	switch {
	case ok:
		if err := h(w, r, names); err != nil {
			a.writeError(w, r, err)
		}
	case r.Method == http.MethodOptions:
		w.Header().Set("Allow", rt.allowHeader())
		if cross {
			preflight(w, r, rt.allowHeader())
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Allow", rt.allowHeader())
		a.writeError(w, r, relay.NewError(relay.CodeMethod,
			strconv.Quote(relay.Truncate(r.Method, 40))+" is not possible here, only "+rt.allowHeader()))
	}
}

func (a *API) writeError(w http.ResponseWriter, r *http.Request, e *relay.Error) {
	if a.opt.Observer != nil {
		a.opt.Observer.Refused(e.Code)
	}
	a.drainBody(w, r)
	httpserver.WriteError(w, r, e)
}

// publicError returns what a client may see of an error from another room.
func (a *API) publicError(r *http.Request, err error) *relay.Error {
	var e *relay.Error
	switch {
	case errors.As(err, &e):
		if e.Code == relay.CodeNotReady {
			a.logUnavailable(r, err)
		}
		return e
	case r.Context().Err() != nil: // the client has gone away, nobody will read this
		return relay.NewError(relay.CodeNotReady, "the request was cancelled")
	default:
		return httpserver.InternalError(r, a.opt.Log, err)
	}
}

// logRepeatInterval is the least time between two complaints: what is away fails every request for the same reason.
const logRepeatInterval = 10 * time.Second

// logThrottle says yes once in complainEvery. Its zero value is ready.
type logThrottle struct{ last atomic.Int64 } // when it said yes, in unix nanoseconds; 0 is never

func (s *logThrottle) allow() bool {
	last, now := s.last.Load(), time.Now().UnixNano()
	return (last == 0 || now-last >= int64(logRepeatInterval)) && s.last.CompareAndSwap(last, now)
}

// logUnavailable logs why requests are answered with 503, which the answers do not tell.
func (a *API) logUnavailable(r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the client has gone away, that is all
	}
	if a.unavailableLog.allow() {
		a.opt.Log.Warn("requests are answered with 503", "error", err)
	}
}

// authenticate returns the key of the Authorization header.
func (a *API) authenticate(r *http.Request) (*auth.Key, *relay.Error) {
	values := r.Header["Authorization"]
	if len(values) > 1 {
		return nil, relay.NewError(relay.CodeAuthInvalid, "the header Authorization is there more than once")
	}
	if len(values) == 0 {
		return a.opt.Keyring.Authenticate("")
	}
	return a.opt.Keyring.Authenticate(values[0])
}

// hubID returns X-Hub-Id; ok is false where there is none.
func hubID(r *http.Request) (id string, ok bool, err *relay.Error) {
	switch values := r.Header["X-Hub-Id"]; len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, auth.CheckHubID(values[0])
	default:
		return "", false, relay.NewError(relay.CodeInvalidArgument, "the header X-Hub-Id is there more than once")
	}
}

func parsePublicURL(s string) (*url.URL, error) {
	if s == "" {
		return nil, nil
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("public_url cannot be read: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("public_url must be http(s)://host[:port][/path], not %q", u.Redacted())
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, nil
}
