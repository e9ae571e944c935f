package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// A relative data_dir belongs to the directory of the file, also if the working directory has data of another relay.
func TestLoad_DataDir(t *testing.T) {
	file := writeConfig(t, keys+"redis: {data_dir: data}")
	dir := filepath.Dir(file)
	working := t.TempDir()
	t.Chdir(working)
	check := func(environ []string, want string) {
		t.Helper()
		cfg, err := config.Load(file, environ, config.Kinds{})
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Redis.DataDir != want {
			t.Errorf("got %s, want %s", cfg.Redis.DataDir, want)
		}
		if e, err := config.LoadAdminEndpoint(file, environ); err != nil || e.DataDir != want || e.Relay != cfg.Redis.Identity() {
			t.Errorf("commands look in %+v (%v), want %s", e, err, want)
		}
	}
	check(nil, filepath.Join(dir, "data"))
	check([]string{"HUBRELAY_REDIS__DATA_DIR=other"}, "other")
	check([]string{"HUBRELAY_REDIS__DATA_DIR=/absolute"}, "/absolute")
	if err := os.MkdirAll(filepath.Join("data", "appendonlydir"), 0o700); err != nil {
		t.Fatal(err)
	}
	check(nil, filepath.Join(dir, "data"))
}
