package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/migration"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

type anyDriver struct{}

func (anyDriver) Validate() error { return nil }
func (anyDriver) IsSet() bool     { return true }

// A start fills the inventory with a new file, undoes no import, and is not stopped by a job.
func TestTheInventoryFile(t *testing.T) {
	t.Parallel()
	c, err := redisconn.Open(t.Context(), redisconn.Options{URL: redistest.Start(t).URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	b := newStores(c)
	file := func(servers string) *migration.File {
		f, err := migration.ParseFile("x", []byte("clusters: {p: {servers: {"+servers+"}}}\ncontainers: {c: {hub_id: h, instances: {i: {server_id: a}}}}"))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	opens := func(cfg *config.Config, f *migration.File) (*App, string) {
		var log bytes.Buffer
		a := &App{cfg: cfg, settings: Settings{Inventory: f}, log: slog.New(slog.NewTextHandler(&log, nil))}
		if err := a.openInventory(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		return a, log.String()
	}
	cfg := &config.Config{Migration: config.Migration{InventoryFile: "inv.yaml", Driver: config.Driver{Settings: anyDriver{}}}}
	servers := func(a *App) int {
		list, err := a.adminInventory()().List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Servers)
	}
	instances := func(a *App) int {
		list, err := a.adminInventory()().List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Containers[0].Instances)
	}

	a, log := opens(cfg, file("a: , b: "))
	if servers(a) != 2 || !strings.Contains(log, "was imported") {
		t.Errorf("%d servers: %s", servers(a), log)
	}
	imported, err := migration.ParseImport("x", []byte("containers: {c: {hub_id: h, instances: {i: {server_id: a}, j: {server_id: b}}}}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.inventory.Load().Import(t.Context(), imported); err != nil {
		t.Fatal(err)
	}
	if a, log := opens(cfg, file("a: , b: ")); instances(a) != 2 || log != "" {
		t.Errorf("the import was undone: %s", log)
	}
	if err := c.Commands().HSet(t.Context(), c.Keys().ActiveMigrations(0), "c/i", "job").Err(); err != nil {
		t.Fatal(err)
	}
	if a, log := opens(cfg, &migration.File{}); servers(a) != 2 || !strings.Contains(log, "was not imported") || !strings.Contains(log, "c/i") {
		t.Errorf("%d servers: %s", servers(a), log)
	}
	if a, _ := opens(cfg, nil); servers(a) != 2 {
		t.Error("without a file the inventory stays")
	}
	if a, _ := opens(&config.Config{}, file("a: ")); a.adminInventory() != nil || a.inventory.Load() != nil {
		t.Error("without a driver there is none")
	}
}
