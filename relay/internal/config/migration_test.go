package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// The driver has the keys of a sink of type plugin. Its paths are relative to the configuration file.
func TestLoad_Migration(t *testing.T) {
	path := writeConfig(t, keys+`migration:
  driver: {command: ["./driver", run], env: ["TOKEN=${SECRET}"], config: {keep: "${SECRET}"}, memory_limit: 64MiB}
  inventory_file: inv.yaml
  server_concurrency: 3
`)
	inventory := filepath.Join(filepath.Dir(path), "inv.yaml")
	if err := os.WriteFile(inventory, []byte("not read here: ["), 0o644); err != nil { // an inventory is not a secret
		t.Fatal(err)
	}
	cfg, err := config.Load(
		path,
		[]string{"SECRET=s3cret", "HUBRELAY_MIGRATION__EXPIRE_AFTER=2h", "HUBRELAY_MIGRATION__DRIVER__HANG_TIMEOUT=3s"},
		kinds(),
	)
	if err != nil {
		t.Fatal(err)
	}
	m := cfg.Migration
	driver, ok := m.Driver.Settings.(*host.Config)
	if !ok || !m.Driver.IsSet || m.InventoryFile != inventory || m.ServerConcurrency != 3 ||
		m.ExpireAfter != 2*time.Hour {
		t.Fatalf("%+v", m)
	}
	if driver.Env[0] != "TOKEN=s3cret" || driver.Config["keep"] != "s3cret" || driver.HangTimeout != 3*time.Second ||
		driver.MemoryLimit != 64<<20 {
		t.Errorf("%+v", driver)
	}
	// A missing program is only a warning.
	if len(cfg.Warnings) != 1 || !strings.Contains(cfg.Warnings[0].String(),
		":3:21: migration.driver.command: cannot be started: the command "+filepath.Join(filepath.Dir(path),
			"driver")+" does not exist") {
		t.Errorf("warnings %v", cfg.Warnings)
	}
	var out strings.Builder
	if err := cfg.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"command: [./driver, run]  # line 3", "hang_timeout: 3s  # HUBRELAY_MIGRATION__DRIVER__HANG_TIMEOUT",
		"expire_after: 2h  # ",
	} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("want %q in\n%s", part, out.String())
		}
	}
	if strings.Contains(out.String(), "s3cret") {
		t.Error("the output contains a secret")
	}
}

func TestLoad_MigrationErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown key": {"{drivr: {}}", `migration.drivr: unknown key; did you mean "driver"?`},
		"driver key":  {"{driver: {comand: [x]}}", `migration.driver.comand: unknown key; did you mean "command"?`},
		"no command":  {"{driver: {args: [x]}}", "migration.driver.command: is missing: name the program of the plugin"},
		"builtin": {
			"{driver: {command: ['builtin:directry']}}",
			"migration.driver.command: names \"builtin:directry\", which is not part of hubrelay: did you " +
				"mean builtin:directory?",
		},
		"all at once": {
			"{driver: {command: [x], sha256: abc}, server_concurrency: 0}",
			"migration.driver.sha256: is not 64 hexadecimal digits",
		},
		"concurrency": {
			"{server_concurrency: 2000}",
			"migration.server_concurrency: 2000 is out of range; choose a value from 1 to 1024",
		},
		"expiry": {
			"{expire_after: 0s}", "migration.expire_after: 0s is out of range; choose a value from 1s to 8760h",
		},
		"no inventory": {
			"{driver: {command: [x]}, inventory_file: none.yaml}",
			"the file cannot be read: no such file or directory; file names are relative to the directory",
		},
	} {
		if _, err := config.Load(writeConfig(t, keys+"migration: "+c.text+"\n"), nil, kinds()); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
	if _, err := config.Load(writeConfig(t, keys+"migration: {driver: {command: [x]}}\n"), nil,
		config.Kinds{}); err == nil {
		t.Error("a driver without a kind was accepted")
	}
}

func TestLoad_MigrationWarnings(t *testing.T) {
	for text, want := range map[string]string{
		"{inventory_file: hubrelay.yaml}": "migration.inventory_file: " +
			"has no effect without a driver; set the command of migration.driver",
		"{driver: {command: ['builtin:directory']}}": "migration.driver: has no " +
			"migration.inventory_file, so there are no servers; name one, such as a copy of configs/inventory.yaml",
		"{driver: {command: ['builtin:directory']}, inventory_file: hubrelay.yaml}": "",
		"{driver: {}, expire_after: 1h}":                                            "",
	} {
		cfg, err := config.Load(writeConfig(t, keys+"migration: "+text+"\n"), nil, kinds())
		if err != nil {
			t.Fatal(err)
		}
		if got := config.Problems(cfg.Warnings).Error(); !strings.HasSuffix(got, want) || want == "" && got != "" {
			t.Errorf("%s warns %q, want %q", text, got, want)
		}
	}
}
