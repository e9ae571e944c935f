// Package publicapi implements the public HTTP API: tokens, the upgrade to a stream, publishing, the routes of
// modules, and the OpenAPI and AsyncAPI documents.
//
// It authorizes requests and defines the order of the checks. Every rejection is a [relay.Error] in the error envelope.
// The format of notifications belongs to relay/internal/ingest, and open streams belong to relay/internal/clients. This
// package uses both through small interfaces.
package publicapi

import (
	"cmp"
	"context"
	_ "embed" // for the documents below
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/module"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
)

// The defaults of Options.MaxBody, MaxBodyMemory and MinBodyRate: 1 MiB, 64 MiB, and 4 KiB per second.
const (
	DefaultMaxBody       = 1 << 20
	DefaultMaxBodyMemory = 64 << 20
	DefaultMinBodyRate   = 4 << 10
)

// Tokens issues tokens, consumes them for websockets, and keeps them alive for event streams. [auth.TokenStore]
// implements it. The methods are called concurrently.
type Tokens interface {
	Issue(ctx context.Context, g auth.Grant, takeRoom func(bytes int64) error) (string, error)
	Get(ctx context.Context, token string) (auth.Grant, error)
	Consume(ctx context.Context, token string) (auth.Grant, error)
	KeepAlive(ctx context.Context, token string, onEnd func()) (*auth.Hold, error)
}

// Publisher stores all notifications of a publication or none, and returns their IDs in order. A *relay.Error is sent
// to the client. Any other error is logged and sent as 500.unknown. [ingest.Publisher] implements it. It is called
// concurrently.
type Publisher interface {
	Publish(ctx context.Context, p ingest.Publication) ([]string, error)
}

// Streams serves websockets and event streams after their requests were authorized. [clients.Server] implements it. If a
// method returns an error, it has written nothing. Both methods are called concurrently, and may return while the
// hijacked connection is still open.
type Streams interface {
	ServeWebSocket(w http.ResponseWriter, r *http.Request, s clients.Subscription) *relay.Error
	ServeEvents(w http.ResponseWriter, r *http.Request, s clients.Subscription) *relay.Error
}

// Quotas limits requests. Take returns a [*quota.ExceededError] if a limit is reached. Any other error means that the
// limit is unknown. [quota.Quotas] implements it. It is called concurrently.
type Quotas interface {
	Take(ctx context.Context, c quota.Client, a quota.Amount) error
}

// Observer counts rejected requests. Its method is called concurrently and must not block.
type Observer interface {
	RequestRejected(code relay.Code)
}

// Options are the dependencies and settings of an [API]. All fields except Failures, Quotas, TakeRoom, Routes, RelayID,
// PublicURL, AllowedOrigins, TrustedProxies, MaxBody, MaxBodyMemory, MaxBodies, MinBodyRate, Log, Observer and Audit are
// required.
type Options struct {
	Authenticator *auth.Authenticator
	// Failures counts failed authentications. Nil means a new throttle.
	Failures  *auth.FailureThrottle
	Tokens    Tokens
	Publisher Publisher
	Streams   Streams
	// Quotas limits requests that do not publish. Publisher limits the others. Nil sets no limit.
	Quotas Quotas
	// TakeRoom counts bytes that an account, or a key without one, is about to store. It returns a *[relay.Error] if it may not.
	// Nil allows everything.
	TakeRoom func(owner string, bytes int64) error
	// Routes are the routes of modules.
	Routes []module.PublicRoute
	// Catalog contains the topics against which the parameter topics is checked.
	Catalog *relay.Catalog
	// RelayID identifies this relay to relays that copy its notifications. They use it to detect cycles.
	RelayID string
	// PublicURL is the address of the relay for clients, used in the Link header. If it is empty, the header uses the
	// host of the request.
	PublicURL string
	// AllowedOrigins are the origins of other hosts whose pages may connect: `https://host[:port]` or "*".
	AllowedOrigins []string
	// TrustedProxies are the proxies whose headers name the address of a client.
	TrustedProxies clientaddr.Proxies
	// MaxBody is the maximum size of a request body in bytes. Zero means [DefaultMaxBody].
	MaxBody int64
	// MaxBodyMemory is the maximum memory for all request bodies together, and again for their decoded notifications, in
	// bytes. Zero means [DefaultMaxBodyMemory].
	MaxBodyMemory int64
	// MaxBodies is the maximum number of request bodies that are read at once. Each of them may occupy a connection. Zero means
	// no limit.
	MaxBodies int
	// MinBodyRate is the minimum rate of a request body in bytes per second. Zero means [DefaultMinBodyRate].
	MinBodyRate int64
	Log         *slog.Logger
	Observer    Observer
	// Audit records failed authentications, revoked tokens, exceeded quotas and the actions of modules. Nil discards
	// them.
	Audit audit.Recorder
}

// API handles public requests. It is safe for concurrent use.
type API struct {
	opt           Options
	publicURL     *url.URL // nil if Options.PublicURL is empty
	origins       origins
	routes        map[string]route // by path
	paramRoutes   []route          // routes with parameters in the path
	bodies        sync.Pool
	budget        *bodyBudget // of bodies
	decodedBudget *bodyBudget // of their notifications
	countBudget   *bodyBudget // number of bodies that are read at once
	bodyWait      time.Duration
	// bodyWindow is the period over which the rate of a body is measured. drainTime limits the reading of a rejected body.
	bodyWindow, drainTime time.Duration

	exceeded exceededQuotas
	reopened *quota.LocalLimiter[string] // by token

	unavailableLog rate.Sometimes // unavailable stores
	originLog      rate.Sometimes // rejected origins
}

// handler writes a response, or returns an error before it has written anything. params are the values of the
// parameters in the path.
type handler func(w http.ResponseWriter, r *http.Request, params []string) *relay.Error

// withoutParams converts a handler of a path without parameters.
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
	pathToken         = pathNotifications + "/token"
	pathOpenAPI       = "/openapi.yaml"
	pathAsyncAPI      = "/asyncapi.yaml"
)

// New checks the options and returns the handler. Serve it with [httpserver.Listen], which sets timeouts and recovers
// panics.
func New(o Options) (*API, error) {
	o.MaxBody = cmp.Or(o.MaxBody, DefaultMaxBody)
	o.MaxBodyMemory = cmp.Or(o.MaxBodyMemory, DefaultMaxBodyMemory)
	o.MinBodyRate = cmp.Or(o.MinBodyRate, DefaultMinBodyRate)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Failures == nil {
		o.Failures = auth.NewFailureThrottle()
	}
	if o.Audit == nil {
		o.Audit = audit.Discard{}
	}
	if o.TakeRoom == nil {
		o.TakeRoom = func(string, int64) error { return nil }
	}
	a := &API{
		opt: o, drainTime: maxDrainTime, bodyWait: bodyWait, bodyWindow: defaultBodyWindow,
		budget: newBodyBudget(o.MaxBodyMemory), decodedBudget: newBodyBudget(o.MaxBodyMemory),
		countBudget:    newBodyBudget(cmp.Or(int64(o.MaxBodies), math.MaxInt64)),
		reopened:       quota.NewLocalLimiter[string](reopensPerSecond, reopenBurst, maxReopened),
		unavailableLog: rate.Sometimes{Interval: logInterval}, originLog: rate.Sometimes{Interval: logInterval},
	}
	a.bodies.New = func() any {
		return &requestBody{received: reservation{budget: a.budget}, decoded: reservation{budget: a.decodedBudget}}
	}
	var err error
	if a.publicURL, err = parsePublicURL(o.PublicURL); err != nil {
		return nil, err
	}
	if a.origins, err = newOrigins(o.AllowedOrigins, a.publicURL); err != nil {
		return nil, err
	}
	a.routes = map[string]route{
		pathNotifications: newRoute(withoutParams(a.serveNotifications), "GET", "HEAD").
			handle(withoutParams(a.publish), "POST"),
		pathToken:    newRoute(withoutParams(a.revokeToken), "DELETE"),
		pathOpenAPI:  newRoute(withoutParams(serveDocument(openAPI)), "GET", "HEAD"),
		pathAsyncAPI: newRoute(withoutParams(serveDocument(asyncAPI)), "GET", "HEAD"),
	}
	for _, m := range o.Routes {
		a.addModuleRoute(m)
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

// matchRoute returns the route of a request and the values of its path parameters. Only parameters may have escapes. Otherwise a
// client could bypass the path rules of a proxy.
func (a *API) matchRoute(r *http.Request) (route, []string, bool) {
	path := r.URL.EscapedPath()
	if rt, ok := a.routes[path]; ok {
		return rt, nil, true
	}
	for _, rt := range a.paramRoutes {
		if params, ok := matchPattern(rt.pattern, path); ok {
			return rt, params, true
		}
	}
	return route{}, nil, false
}

func (rt route) allowHeader() string { return rt.allow + http.MethodOptions }

// ServeHTTP handles one request. It neither cleans nor redirects paths.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 && !mayHaveBody(r) {
		httpserver.EndSoon(w, r) // net/http waits for this body before it sends the response
		a.drainBody(w, r)
	}
	rt, params, ok := a.matchRoute(r)
	if !ok {
		path := strconv.Quote(relay.Truncate(r.URL.Path, 200))
		a.writeError(w, r, relay.NewError(relay.CodeNoURI,
			"there is nothing at "+path+"; GET "+pathOpenAPI+" lists what there is"))
		return
	}
	isCrossOrigin := a.origins.allowCORS(w, r)
	h, ok := rt.methods[r.Method]
	switch {
	case ok:
		if err := h(w, r, params); err != nil {
			a.writeError(w, r, err)
		}
	case r.Method == http.MethodOptions:
		w.Header().Set("Allow", rt.allowHeader())
		if isCrossOrigin {
			setPreflightHeaders(w, r, rt.allowHeader())
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Allow", rt.allowHeader())
		a.writeError(w, r, relay.NewError(relay.CodeMethod,
			strconv.Quote(relay.Truncate(r.Method, 40))+" is not possible here, only "+rt.allowHeader()))
	}
}

// mayHaveBody reports whether a handler may read the body of a request.
func mayHaveBody(r *http.Request) bool { return r.Method == http.MethodPost }

func (a *API) writeError(w http.ResponseWriter, r *http.Request, e *relay.Error) {
	if e.Code == relay.CodeAuthInvalid || e.Code == relay.CodeAuthExpired {
		e = a.countAuthFailure(w, r, e)
	}
	if (e.Code == relay.CodeRateLimiting || e.Code == relay.CodeAuthUnavailable) && w.Header().Get("Retry-After") == "" {
		setRetryAfter(w, time.Second)
	}
	if a.opt.Observer != nil {
		a.opt.Observer.RequestRejected(e.Code)
	}
	httpserver.EndSoon(w, r)
	if mayHaveBody(r) {
		a.drainBody(w, r)
	}
	httpserver.WriteError(w, r, e)
}

// publicError converts an error of another package to one that may be sent to a client.
func (a *API) publicError(r *http.Request, err error) *relay.Error {
	var e *relay.Error
	switch {
	case errors.As(err, &e):
		if e.Code == relay.CodeNotReady {
			a.logUnavailable(r, err)
		}
		return e
	case r.Context().Err() != nil: // the client has disconnected and will not read the response
		return relay.NewError(relay.CodeNotReady, "the request was canceled")
	default:
		return httpserver.InternalError(r, a.opt.Log, err)
	}
}

// logInterval is the minimum time between two messages about errors that every request may cause.
const logInterval = 10 * time.Second

// logUnavailable logs the cause of a 503. The response does not contain it.
func (a *API) logUnavailable(r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the error is caused by the end of the request
	}
	a.unavailableLog.Do(func() { a.opt.Log.Warn("requests get 503", "error", err) })
}

func parsePublicURL(s string) (*url.URL, error) {
	if s == "" {
		return nil, nil
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("public_url cannot be read: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" ||
		u.User != nil {
		return nil, fmt.Errorf("public_url must be http(s)://host[:port][/path], not %q", u.Redacted())
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, nil
}

//go:embed openapi.yaml
var openAPI string

//go:embed asyncapi.yaml
var asyncAPI string

func serveDocument(text string) func(http.ResponseWriter, *http.Request) *relay.Error {
	document := []byte(text) // once, not for each request
	return func(w http.ResponseWriter, r *http.Request) *relay.Error {
		httpserver.EndSoon(w, r)
		h := w.Header()
		h.Set("Content-Type", "application/yaml; charset=utf-8")
		h.Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(document) // fails only if the client has disconnected
		return nil
	}
}
