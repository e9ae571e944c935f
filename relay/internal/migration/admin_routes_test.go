package migration

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
)

// fakeInventory returns err and records imports.
type fakeInventory struct {
	err  error
	file *File
}

func (f *fakeInventory) List(context.Context) (Listing, error) {
	return Listing{
		Version: 7, Servers: []relay.Server{
			{ID: "s1", Cluster: "p", Settings: []byte(`{"key":"s3cret"}`), Instances: []string{"i1"}},
			{ID: "s2", Cluster: "p"},
		},
		Containers: []ListedContainer{
			{
				Container: Container{ID: "c", Hub: "h"},
				Instances: []ListedInstance{{ID: "i1", Server: "s1", MovedFrom: "s2", Job: "j"}},
			},
			{Container: Container{ID: "d", Hub: "h", Account: "a", Environment: "e", Stateful: true}},
		},
	}, f.err
}

func (f *fakeInventory) Import(_ context.Context, file *File) (Changes, error) {
	f.file = file
	return Changes{Servers: ChangeCount{Added: 1}, MovesCleared: 2}, f.err
}

func (f *fakeInventory) DriverError() error { return errors.New("no program ./driver") }

// newAdmin returns an admin API with the routes of an inventory. Callers have all permissions.
func newAdmin(get func() (adminInventory, error)) *adminserver.Admin {
	return adminserver.New(adminserver.Options{
		Authenticator: new(adminserver.SocketPeer), Routes: adminRoutes(get),
	})
}

func TestAdminRoutes_Inventory(t *testing.T) {
	const good = "clusters: {p: {servers: {s: {}}}}"
	for _, c := range []struct {
		method, body string
		err          error
		status       int
		contains     string
	}{
		{"GET", "", nil, 200, `{"data":{"version":7,"servers":[{"id":"s1","cluster":"p","instances":["i1"]},` +
			`{"id":"s2","cluster":"p","instances":[]}],` +
			`"containers":[{"id":"c","hub_id":"h","stateful":false,"instances":[{"id":"i1","server_id":"s1",` +
			`"moved_from":"s2","job_id":"j"}]},` +
			`{"id":"d","hub_id":"h","account_id":"a","environment_id":"e","stateful":true,"instances":[]}],` +
			`"driver_error":"no program ./driver"}}`},
		{"HEAD", "", nil, 200, ""},
		{"GET", "", errors.New("redis is unreachable"), 503, `"code":"503.not-ready"`},
		{"DELETE", "", nil, 405, "GET, HEAD, PUT"},
		{
			"PUT", good, nil, 200,
			`{"data":{"changed":true,"servers":{"added":1,"changed":0,"removed":0},"containers":{"added":0,` +
				`"changed":0,"removed":0},"instances":{"added":0,"changed":0,"removed":0},"moves_cleared":2}}`,
		},
		{"PUT", `{"clusters":{}}`, nil, 200, `"changed":true`},
		{"PUT", "", nil, 422, "inventory:1:1: the file is empty"},
		{
			"PUT", "clusters: {p: {server: {}}}\nx: y", nil, 422,
			`"detail":"inventory:1:16: clusters.p.server: unknown key; did you mean \"servers\"?, and 1 more"`,
		},
		{
			"PUT", "clusters: {p: {server: {}}}\nx: y", nil, 422,
			`"problems":["inventory:1:16: clusters.p.server: unknown key; did you mean ` +
				`\"servers\"?","inventory:2:1: x: unknown key`,
		},
		{"PUT", "#" + strings.Repeat("x", MaxFile), nil, 413, `"code":"413.too-large"`},
		{"PUT", "#" + strings.Repeat("x", 1<<20) + "\n" + good, nil, 200, `"changed":true`},
		{
			"PUT", good, &RejectedError{Reason: "wait for the job", Instances: []string{"c/i"}}, 409,
			`"detail":"wait for the job","extra":{"instances":["c/i"]}`,
		},
		{"PUT", good, ErrImportSuperseded, 409, "a later import"},
		{"PUT", good, errors.New("redis is unreachable"), 503, "redis is unreachable"},
	} {
		v := &fakeInventory{err: c.err}
		a := newAdmin(func() (adminInventory, error) { return v, nil })
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest(c.method, "http://127.0.0.1/api/inventory", strings.NewReader(c.body)))
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.contains) ||
			strings.Contains(w.Body.String(), "s3cret") {
			t.Errorf("%s %.40s: got %d %.700s", c.method, c.body, w.Code, w.Body)
		}
		if imported := v.file != nil; imported != (w.Code == 200 && len(c.body) > 0 || c.err != nil && c.body != "") {
			t.Errorf("%s %.40s: got import %+v", c.method, c.body, v.file)
		}
	}
}

func TestAdminRoutes_InventoryUnavailable(t *testing.T) {
	get := func(m *Module) *httptest.ResponseRecorder {
		admin := adminserver.New(adminserver.Options{
			Authenticator: new(adminserver.SocketPeer), Routes: m.AdminRoutes(),
		})
		w := httptest.NewRecorder()
		admin.ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1/api/inventory", nil))
		return w
	}
	if w := get(&Module{}); w.Code != 503 || !strings.Contains(w.Body.String(), `"code":"503.not-enabled"`) {
		t.Errorf("no driver: got %d %s", w.Code, w.Body)
	}
	r := httptest.NewRequest("PUT", "http://127.0.0.1/api/inventory", strings.NewReader("clusters: {}"))
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	v, w := &fakeInventory{}, httptest.NewRecorder()
	newAdmin(func() (adminInventory, error) { return v, nil }).ServeHTTP(w, r)
	if w.Code != 403 || v.file != nil {
		t.Errorf("cross-site request: got %d", w.Code)
	}
}
