package adminserver

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/module"
)

// newWithTokens returns a handler for a TCP listener with one token per role. The name of a token is its role.
func newWithTokens(o Options) *Admin {
	tokens := new(Tokens)
	var list []Token
	for _, role := range []adminapi.Role{adminapi.RoleViewer, adminapi.RoleOperator, adminapi.RoleAdmin} {
		list = append(list, Token{Name: string(role), Role: role, Hash: sha256.Sum256([]byte("secret-of-" + role))})
	}
	tokens.Replace(list)
	o.Authenticator = tokens
	return New(o)
}

func TestAdmin_RequiresToken(t *testing.T) {
	a := newWithTokens(Options{Sinks: &fakeSinks{}})
	for _, path := range []string{"/nothing", "/api/sinks", "/api/nothing", "/debug/pprof/", "/debug/pprof/cmdline"} {
		for _, header := range []string{
			"", "Bearer", "Bearer ", "Bearer secret-of-nobody", "Basic secret-of-admin", "secret-of-admin",
		} {
			r := httptest.NewRequest("GET", "http://127.0.0.1"+path, nil)
			if header != "" {
				r.Header.Set("Authorization", header)
			}
			w := httptest.NewRecorder()
			a.ServeHTTP(w, r)
			if w.Code != 401 || w.Header().Get("WWW-Authenticate") == "" ||
				!strings.Contains(w.Body.String(), "admin.tokens") {
				t.Errorf("%s with %q: got %d %s, want 401", path, header, w.Code, w.Body)
			}
		}
	}
	if w := get(New(Options{}), "GET", "/api/sinks", ""); w.Code != 401 {
		t.Errorf("without an authenticator: got %d, want 401", w.Code)
	}
}

func TestAdmin_ChecksRoles(t *testing.T) {
	ok := func(*http.Request, []byte) (any, error) { return "ok", nil }
	a := newWithTokens(Options{
		Sinks: &fakeSinks{},
		Routes: []module.AdminRoute{
			{Operation: adminapi.ListInventory().Description, MaxBody: 1 << 10, Handle: ok},
			{Operation: adminapi.ImportInventory().Description, MaxBody: 1 << 10, Handle: ok},
		},
	})
	for _, c := range []struct {
		method, path, body      string
		viewer, operator, admin int
	}{
		{"GET", "/", "", 200, 200, 200},
		{"GET", "/api/sinks", "", 200, 200, 200},
		{"GET", "/api/inventory", "", 200, 200, 200},
		{"POST", "/api/sinks/a/pause", "", 403, 200, 200},
		{"POST", "/api/sinks/a/deadletters/drop", `{"ids":["d"]}`, 403, 200, 200},
		{"PUT", "/api/inventory", "clusters: {}", 403, 403, 200},
		{"GET", "/debug/pprof/cmdline", "", 403, 403, 200},
		{"GET", "/debug/pprof/", "", 403, 403, 200},
	} {
		for role, want := range map[adminapi.Role]int{
			adminapi.RoleViewer: c.viewer, adminapi.RoleOperator: c.operator, adminapi.RoleAdmin: c.admin,
		} {
			r := httptest.NewRequest(c.method, "http://127.0.0.1"+c.path, strings.NewReader(c.body))
			r.Header.Set("Authorization", "bearer  secret-of-"+string(role))
			w := httptest.NewRecorder()
			a.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s %s as %s: got %d %s, want %d", c.method, c.path, role, w.Code, w.Body, want)
			}
			if want == 403 && !strings.Contains(w.Body.String(), `"extra":{"role":"`) {
				t.Errorf("%s %s as %s: the error does not name the role: %s", c.method, c.path, role, w.Body)
			}
		}
	}
}

// reachesComponent reports whether the handler of an operation is called. Handlers reject a request without arguments
// with 422, or panic because the component is nil.
func reachesComponent(a *Admin, w *httptest.ResponseRecorder, r *http.Request) (reached bool) {
	defer func() {
		if recover() != nil {
			reached = true
		}
	}()
	a.ServeHTTP(w, r)
	return w.Code == 200 || w.Code == 422
}

// TestAdmin_ChecksRoleOfEachOperation calls all operations with all roles.
func TestAdmin_ChecksRoleOfEachOperation(t *testing.T) {
	ok := func(*http.Request, []byte) (any, error) { return "ok", nil }
	a := newWithTokens(Options{Routes: []module.AdminRoute{
		{Operation: adminapi.ListInventory().Description, Handle: ok},
		{Operation: adminapi.ImportInventory().Description, Handle: ok},
	}})
	for _, op := range adminapi.Operations() {
		d := op.Describe()
		params := make([]string, len(d.ParameterNames()))
		for i := range params {
			params[i] = "a"
		}
		path, err := d.URL(params...)
		if err != nil {
			t.Fatal(err)
		}
		for _, role := range adminapi.Roles() {
			r := httptest.NewRequest(d.Method, "http://127.0.0.1"+path, nil)
			r.Header.Set("Authorization", "Bearer secret-of-"+string(role))
			w := httptest.NewRecorder()
			if reached := reachesComponent(a, w, r); reached != role.Allows(d.Role) || !reached && w.Code != 403 {
				t.Errorf("%s as %s: got %d %s, but the operation requires %s; for 404.uri, register a handler with handleOperation", d.Name, role, w.Code, w.Body, d.Role)
			}
		}
	}
}

func TestAdmin_ServesOpenAPI(t *testing.T) {
	w := get(newOpen(Options{}), "GET", "/api/openapi.yaml", "")
	if w.Code != 200 || w.Body.String() != adminapi.OpenAPI() {
		t.Errorf("got %d and %d bytes, want the description", w.Code, w.Body.Len())
	}
	if w := get(newOpen(Options{}), "POST", "/api/openapi.yaml", ""); w.Code != 405 {
		t.Errorf("POST: got %d, want 405", w.Code)
	}
}

func TestTokens_RejectReplacedToken(t *testing.T) {
	tokens := new(Tokens)
	a := New(Options{Authenticator: tokens})
	call := func(secret string) int {
		r := httptest.NewRequest("GET", "http://127.0.0.1/api/openapi.yaml", nil)
		r.Header.Set("Authorization", "Bearer "+secret)
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		return w.Code
	}
	tokens.Replace([]Token{{Name: "a", Role: adminapi.RoleViewer, Hash: sha256.Sum256([]byte("lost"))}})
	before := call("lost")
	tokens.Replace([]Token{{Name: "a", Role: adminapi.RoleViewer, Hash: sha256.Sum256([]byte("new"))}})
	if lost, fresh := call("lost"), call("new"); before != 200 || lost != 401 || fresh != 200 {
		t.Errorf("got %d before, then %d for the old and %d for the new token; want 200, 401, 200", before, lost, fresh)
	}
}

func TestAdmin_RejectsOtherOrigins(t *testing.T) {
	a := newOpen(Options{Sinks: &fakeSinks{}})
	for _, c := range []struct {
		header, value string
		want          int
	}{
		{"Sec-Fetch-Site", "cross-site", 403},
		{"Sec-Fetch-Site", "same-site", 403},
		{"Sec-Fetch-Site", "same-origin", 200},
		{"Sec-Fetch-Site", "none", 200},
		{"Origin", "http://evil.test", 403},
		{"Origin", "http://127.0.0.1:1", 403},
		{"Origin", "null", 403},
		{"Origin", "http://127.0.0.1:9091", 200},
	} {
		for method, paths := range map[string][]string{
			"GET":  {"/", "/api/sinks", "/debug/pprof/cmdline"},
			"POST": {"/api/sinks/a/pause"},
		} {
			for _, path := range paths {
				r := httptest.NewRequest(method, "http://127.0.0.1:9091"+path, nil)
				r.Header.Set(c.header, c.value)
				w := httptest.NewRecorder()
				a.ServeHTTP(w, r)
				if w.Code != c.want {
					t.Errorf("%s %s with %s %s: got %d, want %d", method, path, c.header, c.value, w.Code, c.want)
				}
			}
		}
	}
}

// blockedSinks blocks a list of sinks until proceed is closed.
type blockedSinks struct {
	fakeSinks
	entered, proceed chan struct{}
}

func (b *blockedSinks) ListSinks(context.Context, adminapi.PageRequest) (adminapi.Page[adminapi.Sink], error) {
	b.entered <- struct{}{}
	<-b.proceed
	return adminapi.Page[adminapi.Sink]{}, nil
}

// Viewers leave connections to operators.
func TestAdmin_LimitsRequestsOfViewers(t *testing.T) {
	sinks := &blockedSinks{entered: make(chan struct{}, MaxConnections), proceed: make(chan struct{})}
	a := newWithTokens(Options{Sinks: sinks})
	list := func(role adminapi.Role) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/api/sinks", http.NoBody)
		r.Host = "127.0.0.1"
		r.Header.Set("Authorization", "Bearer secret-of-"+string(role))
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		return w
	}
	var wg sync.WaitGroup
	for range maxViewerRequests {
		wg.Go(func() {
			if w := list(adminapi.RoleViewer); w.Code != http.StatusOK {
				t.Errorf("viewer: got %d %s", w.Code, w.Body)
			}
		})
	}
	running := func() int { return len(sinks.entered) }
	testkit.WaitForValue(t, "requests of viewers", maxViewerRequests, running)
	if w := list(adminapi.RoleViewer); w.Code != http.StatusServiceUnavailable {
		t.Errorf("one viewer too many: got %d %s, want 503", w.Code, w.Body)
	}
	wg.Go(func() {
		if w := list(adminapi.RoleOperator); w.Code != http.StatusOK {
			t.Errorf("operator: got %d %s", w.Code, w.Body)
		}
	})
	testkit.WaitForValue(t, "the request of the operator", maxViewerRequests+1, running)
	close(sinks.proceed)
	wg.Wait()
	if w := list(adminapi.RoleViewer); w.Code != http.StatusOK {
		t.Errorf("viewer after the others: got %d %s", w.Code, w.Body)
	}
}

// A viewer cannot occupy all connections of the listener.
func TestAdmin_ViewersMakeRoom(t *testing.T) {
	sinks := &blockedSinks{entered: make(chan struct{}, 1), proceed: make(chan struct{})}
	s, err := httpserver.Listen(httpserver.Options{
		Name: "admin", Addr: "127.0.0.1:0", Handler: newWithTokens(Options{Sinks: sinks}), Log: slog.New(slog.DiscardHandler),
		ConnLimits: httpserver.ConnLimits{Total: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	defer running.Wait()
	defer stop()
	defer close(sinks.proceed)
	get := func(role adminapi.Role, path string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr().String()+path, http.NoBody)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer secret-of-"+string(role))
		transport := &http.Transport{DisableKeepAlives: true}
		return transport.RoundTrip(r)
	}
	ended := make(chan error)
	go func() {
		w, err := get(adminapi.RoleViewer, "/api/sinks")
		if err == nil {
			_ = w.Body.Close()
		}
		ended <- err
	}()
	<-sinks.entered
	w, err := get(adminapi.RoleOperator, adminapi.SessionPath)
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Body.Close()
	if w.StatusCode != http.StatusOK {
		t.Errorf("operator: got %d, want 200", w.StatusCode)
	}
	if err := <-ended; err == nil {
		t.Error("the connection of the viewer was not closed")
	}
}

// The description of the API and its tests know all operations that are served.
func TestAdmin_ListsAllOperations(t *testing.T) {
	listed := map[string]bool{"GET /api/openapi.yaml": true}
	for _, op := range adminapi.Operations() {
		d := op.Describe()
		listed[d.Method+" "+d.Path] = true
	}
	for path, methods := range newAPIHandler(Options{}).routes {
		for method := range methods {
			if method != http.MethodHead && !listed[method+" "+path] {
				t.Errorf("adminapi.Operations lacks %s %s", method, path)
			}
		}
	}
}
