package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// A relative data_dir belongs to the directory of the file. Data that an earlier build stored in the working directory stays
// in use.
func TestLoad_DataDir(t *testing.T) {
	file := writeConfig(t, keys+"redis: {data_dir: data}")
	dir := filepath.Dir(file)
	working := t.TempDir()
	t.Chdir(working)
	check := func(environ []string, want string, warnings int) {
		t.Helper()
		cfg, err := config.Load(file, environ, config.Kinds{})
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, w := range cfg.Warnings {
			if w.Path == "redis.data_dir" {
				got++
			}
		}
		if cfg.Redis.DataDir != want || got != warnings {
			t.Errorf("got %s with %d warnings, want %s with %d", cfg.Redis.DataDir, got, want, warnings)
		}
		if e, err := config.LoadAdminEndpoint(file, environ); err != nil || e.DataDir != want || e.Relay != cfg.Redis.Identity() {
			t.Errorf("commands look in %+v (%v), want %s", e, err, want)
		}
	}
	store := func(dir string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, "appendonlydir"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	check(nil, filepath.Join(dir, "data"), 0)
	check([]string{"HUBRELAY_REDIS__DATA_DIR=other"}, "other", 0)
	check([]string{"HUBRELAY_REDIS__DATA_DIR=/absolute"}, "/absolute", 0)
	store("data")
	check(nil, filepath.Join(working, "data"), 1)
	check([]string{"HUBRELAY_REDIS__URL=redis://127.0.0.1:1"}, filepath.Join(dir, "data"), 0)
	store(filepath.Join(dir, "data"))
	check(nil, filepath.Join(dir, "data"), 0)
}
