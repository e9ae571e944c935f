package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// Variables set keys of sources by their names, with or without an entry in the file.
func TestLoad_SourcesFromEnvironment(t *testing.T) {
	path := writeConfig(t, keys+"sources: {my-one: {type: hub, url: \"https://a.example\", key: k}}\n")
	cfg, err := config.Load(path, environ(
		"HUBRELAY_SOURCES__MY_ONE__KEY=${OPS_KEY}", "HUBRELAY_SOURCES__MY_ONE__TOPICS=job.*,!job.created",
		"HUBRELAY_SOURCES__NEW__TYPE=hub", "HUBRELAY_SOURCES__NEW__URL=https://b.example",
		"HUBRELAY_SOURCES__NEW__KEY=k",
	), kinds())
	if err != nil {
		t.Fatal(err)
	}
	one, fresh := cfg.Sources["my-one"], cfg.Sources["new"]
	if one.Key != "0123456789abcdef-ops" || len(one.Topics) != 2 || one.URL != "https://a.example" ||
		fresh.URL != "https://b.example" {
		t.Errorf("%+v", cfg.Sources)
	}
	_, err = config.Load(path, environ("HUBRELAY_SOURCES__MY_ONE__HUB=x"), kinds())
	if err == nil || !strings.Contains(err.Error(), `did you mean "HUBRELAY_SOURCES__MY_ONE__HUB_ID"?`) {
		t.Error(err)
	}
}

func TestSource_ReadKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	s := config.Source{KeyFile: file}
	for _, c := range []struct{ text, key, problem string }{
		{"first\n", "first", ""}, {"second", "second", ""}, {"", "", "empty"}, {"two words\n", "", "white space"},
	} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		key, err := s.ReadKey()
		if key != c.key || (err != nil) != (c.problem != "") ||
			err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%q: %q, %v", c.text, key, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReadKey(); err == nil {
		t.Error("ReadKey accepted a missing file")
	}
}
