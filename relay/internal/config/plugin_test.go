package config_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// The configuration of a plugin may be any YAML. Secrets are expanded from the environment and never printed.
func TestLoad_PluginConfig(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "hubrelay.yaml")
	text := `auth: {keys: [{name: a, key: 0123456789abcdef, hubs: [a]}]}
sinks:
  watcher:
    type: plugin
    command: [./watcher, run]
    env: [HOME, "TOKEN=${SECRET}"]
    memory_limit: 256MiB
    config: {report: out.jsonl, "a.b": {deep: ["${SECRET}", 2, 2.5, true]}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file, []string{"SECRET=s3cret"}, shippedKinds())
	if err != nil {
		t.Fatal(err)
	}
	settings, ok := cfg.Sinks["watcher"].Settings.(*host.Config)
	if !ok {
		t.Fatalf("got settings of type %T", cfg.Sinks["watcher"].Settings)
	}
	got, err := json.Marshal(settings.Config)
	if want := `{"a.b":{"deep":["s3cret",2,2.5,true]},"report":"out.jsonl"}`; err != nil || string(got) != want {
		t.Errorf("config is %s (%v), want %s", got, err, want)
	}
	if settings.Env[1] != "TOKEN=s3cret" || settings.MemoryLimit != 256<<20 || !settings.TLS {
		t.Errorf("settings %+v", settings)
	}
	// A missing program is only a warning.
	if len(cfg.Warnings) != 1 ||
		!strings.Contains(cfg.Warnings[0].String(), filepath.Join(dir, "watcher")+" does not exist") {
		t.Errorf("warnings %v", cfg.Warnings)
	}
	var out strings.Builder
	if err := cfg.Print(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "s3cret") || strings.Contains(out.String(), "out.jsonl") ||
		!strings.Contains(out.String(), "256MiB") {
		t.Errorf("printed:\n%s", out.String())
	}
}
