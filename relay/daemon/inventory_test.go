package daemon

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/migration"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

type anyDriver struct{}

func (anyDriver) Check(context.Context, relay.CheckEnv) relay.Report { return relay.Report{} }

// A start imports a new inventory file. It does not undo later imports, and a running job does not prevent the
// start.
func TestOpenInventory_ImportsFile(t *testing.T) {
	t.Parallel()
	c, err := redisconn.Open(t.Context(), redisconn.Options{URL: redistest.Start(t).URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	b := newStores(c)
	file := func(servers string) *migration.File {
		f, err := migration.ParseFile(
			"x",
			[]byte(
				"clusters: {p: {servers: {"+servers+"}}}\ncontainers: {c: {hub_id: h, instances: {i: {server_id: a}}}}",
			),
		)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	open := func(cfg *config.Config, f *migration.File) (*Daemon, string) {
		var log bytes.Buffer
		a := &Daemon{cfg: cfg, options: Options{Inventory: f}, log: slog.New(slog.NewTextHandler(&log, nil))}
		if err := a.openInventory(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		return a, log.String()
	}
	cfg := &config.Config{
		Migration: config.Migration{InventoryFile: "inv.yaml", Driver: config.Driver{Settings: anyDriver{}, IsSet: true}},
	}
	servers := func(a *Daemon) int {
		list, err := a.adminInventory()().List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Servers)
	}
	instances := func(a *Daemon) int {
		list, err := a.adminInventory()().List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Containers[0].Instances)
	}

	a, log := open(cfg, file("a: , b: "))
	if servers(a) != 2 || !strings.Contains(log, "was imported") {
		t.Errorf("got %d servers: %s", servers(a), log)
	}
	imported, err := migration.ParseImport("x",
		[]byte("containers: {c: {hub_id: h, instances: {i: {server_id: a}, j: {server_id: b}}}}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.inventory.Load().Import(t.Context(), imported); err != nil {
		t.Fatal(err)
	}
	if a, log := open(cfg, file("a: , b: ")); instances(a) != 2 || log != "" {
		t.Errorf("the start undid the import: %s", log)
	}
	if err := c.Commands().HSet(t.Context(), c.Keys().ActiveMigrations(0), "c/i", "job").Err(); err != nil {
		t.Fatal(err)
	}
	if a, log := open(cfg, &migration.File{}); servers(a) != 2 || !strings.Contains(log, "was not imported") ||
		!strings.Contains(log, "c/i") {
		t.Errorf("got %d servers: %s", servers(a), log)
	}
	if a, _ := open(cfg, nil); servers(a) != 2 {
		t.Error("a start without a file changed the inventory")
	}
	if a, _ := open(&config.Config{}, file("a: ")); a.adminInventory() != nil || a.inventory.Load() != nil {
		t.Error("got an inventory without a driver")
	}
}
