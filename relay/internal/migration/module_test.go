package migration

import (
	"bytes"
	"context"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/module"
	"github.com/hubrelay/hubrelay/relay/internal/publicapi"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// startModule starts a module with an inventory file and a driver, but without background work. It also returns the
// log.
func startModule(t *testing.T, b *redisconn.Conn, inventory string, driver relay.Driver) (*Module, string) {
	t.Helper()
	var log bytes.Buffer
	o := ModuleOptions{Registry: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(&log, nil))}
	if inventory != "" {
		o.InventoryFile = filepath.Join(t.TempDir(), "inv.yaml")
		if err := os.WriteFile(o.InventoryFile, []byte(inventory), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if driver != nil {
		o.OpenDriver = func(func(string)) (relay.Driver, error) { return driver, nil }
	}
	m, err := NewModule(o)
	if err != nil {
		t.Fatal(err)
	}
	e := module.Env{
		Redis: b, Node: "n", NewID: func() string { return "0123456789abcdef01234567" },
		Go: func(string, func(context.Context) error) {},
	}
	if err := m.Start(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	return m, log.String()
}

// Start imports a new inventory file. It does not undo later imports, and a running job does not prevent the start.
func TestModule_ImportsFileAtStart(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	file := func(servers string) string {
		return "clusters: {p: {servers: {" + servers + "}}}\n" +
			"containers: {c: {hub_id: h, instances: {i: {server_id: a}}}}\n"
	}
	list := func(m *Module) Listing {
		list, err := m.inventory.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return list
	}

	m, log := startModule(t, b, file("a: , b: "), &fakeDriver{})
	if len(list(m).Servers) != 2 || !strings.Contains(log, "was imported") {
		t.Errorf("got %d servers: %s", len(list(m).Servers), log)
	}
	imported, err := ParseImport("x",
		[]byte("containers: {c: {hub_id: h, instances: {i: {server_id: a}, j: {server_id: b}}}}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.inventory.Import(t.Context(), imported); err != nil {
		t.Fatal(err)
	}
	m, log = startModule(t, b, file("a: , b: "), &fakeDriver{})
	if len(list(m).Containers[0].Instances) != 2 || log != "" {
		t.Errorf("Start undid the import: %s", log)
	}
	active := keys{b.Keys()}.activeMigrations(b.Keys().Partition("h"))
	if err := b.Commands().HSet(t.Context(), active, "c/i", "job").Err(); err != nil {
		t.Fatal(err)
	}
	m, log = startModule(t, b, "clusters: {}", &fakeDriver{})
	if len(list(m).Servers) != 2 || !strings.Contains(log, "was not imported") || !strings.Contains(log, "c/i") {
		t.Errorf("got %d servers: %s", len(list(m).Servers), log)
	}
	if m, _ := startModule(t, b, "", &fakeDriver{}); len(list(m).Servers) != 2 {
		t.Error("Start without a file changed the inventory")
	}
	if m, _ := startModule(t, b, file("a: "), nil); m.inventory != nil || m.service != nil {
		t.Error("got an inventory without a driver")
	}
}

func TestModule_RoutesAreDocumented(t *testing.T) {
	routes := (&Module{}).PublicRoutes()
	api, err := publicapi.New(publicapi.Options{Routes: routes})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	api.ServeHTTP(w, httptest.NewRequest("GET", "/openapi.yaml", nil))
	var doc struct{ Paths map[string]map[string]any }
	if err := yaml.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if doc.Paths[r.Pattern][strings.ToLower(r.Method)] == nil {
			t.Errorf("%s %s is not in the OpenAPI document", r.Method, r.Pattern)
		}
	}
}
