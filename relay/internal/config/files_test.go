package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/sinks"
	"github.com/hubrelay/hubrelay/sinks/webhook"
)

const configs = "../../../configs/"

func shippedKinds() config.Kinds {
	return config.Kinds{
		Sinks:  sinks.Kinds(os.Stdout, "print"),
		Driver: host.DriverKind("directory"),
	}
}

func shippedEnviron() []string {
	return []string{
		"HUBRELAY_KEY=0123456789abcdef",
		"UPSTREAM_KEY=fedcba9876543210",
		"HUBRELAY_SLACK_TOKEN=xoxb-0123456789",
		"HUBRELAY_BILLING_SECRET=whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
	}
}

func TestShippedFiles_Load(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	// The first three are programs of this repository, the last is a system program.
	for _, program := range []string{"hubrelay-docker", "hubrelay-brokers", "hubrelay-notify", "logger"} {
		if err := os.WriteFile(filepath.Join(os.Getenv("PATH"), program), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(configs + "*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), "inventory") {
			continue // relay/internal/migration reads it
		}
		cfg, err := config.Load(file, shippedEnviron(), shippedKinds())
		if err != nil {
			t.Error(err)
		} else if len(cfg.Warnings) > 0 {
			t.Errorf("%s warns: %v", file, cfg.Warnings)
		}
	}
}

// commented matches the settings that configs/hubrelay.yaml comments out: "#" without a space.
func commented() *regexp.Regexp { return regexp.MustCompile(`(?m)^( *)#([a-z0-9_]+:)`) }

// TestReference_StatesDefaults activates all commented settings of configs/hubrelay.yaml, which must change
// nothing.
func TestReference_StatesDefaults(t *testing.T) {
	text, err := os.ReadFile(configs + "hubrelay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := commented().ReplaceAllString(string(text), "$1$2")
	if all == string(text) {
		t.Fatal("found no commented setting")
	}
	for _, kind := range shippedKinds().Sinks {
		if !strings.Contains(all, "type: "+kind.Type) {
			t.Errorf("the file has no sink of type %s", kind.Type)
		}
	}
	off, err := config.Load(configs+"hubrelay.yaml", shippedEnviron(), shippedKinds())
	if err != nil {
		t.Fatal(err)
	}
	on, err := config.Load(writeConfig(t, all), shippedEnviron(), shippedKinds())
	if err != nil {
		t.Fatal(err)
	}
	off.Redis.DataDir, on.Redis.DataDir = filepath.Base(off.Redis.DataDir), filepath.Base(on.Redis.DataDir)
	if diff := cmp.Diff(off, on, ignoreOrigins()); diff != "" {
		t.Errorf("a documented default is wrong (-default +documented):\n%s", diff)
	}
	var given map[string]any
	if err := yaml.Unmarshal([]byte(all), &given); err != nil {
		t.Fatal(err)
	}
	var stated []string
	collectPaths(given, "", &stated)
	var known []string
	walkSchema(schema(t, shippedKinds()), "", func(path string, _ map[string]any) { known = append(known, path) })
	for _, p := range known {
		// A token in the reference would be a well-known password, so comments explain the list.
		if key, ok := strings.CutPrefix(p, "/admin/tokens/*/"); ok && strings.Contains(string(text), key) {
			continue
		}
		if !slices.Contains(stated, p) {
			t.Errorf("configs/hubrelay.yaml does not explain %s", p)
		}
	}
	if len(known) < 40 {
		t.Errorf("the schema has only %d keys: %v", len(known), known)
	}
}

// collectPaths lists the keys of a YAML value. List items and sink names become "*".
func collectPaths(v any, path string, out *[]string) {
	*out = append(*out, path)
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if path == "/sinks" || path == "/sources" {
				k = "*"
			}
			collectPaths(x, path+"/"+k, out)
		}
	case []any:
		for _, x := range v {
			collectPaths(x, path+"/*", out)
		}
	}
}

func schema(t testing.TB, kinds config.Kinds) map[string]any {
	t.Helper()
	text, err := config.JSONSchema(kinds)
	if err != nil {
		t.Fatal(err)
	}
	again, err := config.JSONSchema(kinds)
	if err != nil || !bytes.Equal(text, again) {
		t.Fatal("the schema differs between two calls", err)
	}
	var s map[string]any
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// walkSchema calls visit for each key that a JSON Schema allows. The path has the form of collectPaths.
func walkSchema(s any, path string, visit func(path string, s map[string]any)) {
	m, ok := s.(map[string]any)
	if !ok {
		return
	}
	if path != "" && !strings.HasSuffix(path, "/*") {
		visit(path, m)
	}
	properties, _ := m["properties"].(map[string]any)
	for k, x := range properties {
		walkSchema(x, path+"/"+k, visit)
	}
	walkSchema(m["items"], path+"/*", visit)
	more, _ := m["additionalProperties"].(map[string]any)
	if more["properties"] != nil {
		walkSchema(more, path+"/*", visit)
	}
	kinds, _ := more["oneOf"].([]any)
	for _, k := range kinds {
		walkSchema(k, path+"/*", visit)
	}
}

func TestJSONSchema_DescribesEveryKey(t *testing.T) {
	walkSchema(schema(t, shippedKinds()), "", func(path string, s map[string]any) {
		if d, _ := s["description"].(string); d == "" || strings.TrimSpace(d) != d {
			t.Errorf("%s has no description", path)
		}
	})
}

func TestJSONSchema(t *testing.T) {
	text, err := config.JSONSchema(kinds())
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "testdata/schema.json", string(text))
}

func TestLoad_RejectsInvalidKinds(t *testing.T) {
	type clash struct {
		testSink
		Timeout int `koanf:"timeout"`
	}
	type untagged struct {
		testSink `koanf:",squash"`
		Other    int
	}
	for _, c := range []relay.Config{&clash{}, &untagged{}} {
		kind := relay.SinkKind{Type: "odd", Config: func() relay.Config { return c }}
		_, err := config.Load(writeConfig(t, keys), nil, config.Kinds{Sinks: []relay.SinkKind{kind}})
		var problems config.Problems
		if err == nil || errors.As(err, &problems) {
			t.Errorf("%T: got %v, want an error other than Problems", c, err)
		}
	}
}

func TestLoad_WebhookSettings(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"hubrelay.yaml": keys + "sinks: {hook: {type: webhook, url: 'https://example.com/x?y', secret_files: [one]}}\n",
		"one":           "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Load(filepath.Join(dir, "hubrelay.yaml"), nil, shippedKinds())
	if err != nil {
		t.Fatal(err)
	}
	hook, ok := cfg.Sinks["hook"].Settings.(*webhook.Config)
	if !ok || len(hook.SecretFiles) != 1 || hook.SecretFiles[0] != filepath.Join(dir, "one") {
		t.Errorf("secret_files = %v, want a path next to the configuration", hook.SecretFiles)
	}
	_, err = config.Load(
		writeConfig(t,
			keys+"sinks:\n  hook:\n    type: webhook\n    url: https://example.com\n    secrets: [whsec_!, oops]\n"),
		nil, shippedKinds(),
	)
	if err == nil || !strings.Contains(err.Error(), ":6:15: sinks.hook.secrets[0]: ") ||
		strings.Contains(err.Error(), "whsec_!") {
		t.Errorf("got %v", err)
	}
}

func FuzzLoad(f *testing.F) {
	seeds, err := filepath.Glob("testdata/*.y*ml")
	if err != nil {
		f.Fatal(err)
	}
	more, err := filepath.Glob(configs + "*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range append(seeds, more...) {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, "127.0.0.1:80")
	}
	for _, text := range []string{
		"a: &a [*a]", "<<: {}", "? [a]: b\n: c", "{a: http://l:80}", "a: |\n", "a: *b", "- &x\n- *x", "%TAG ! x\n---\n",
		"...", "a: [x:1, y:]",
	} {
		f.Add([]byte(text), "{")
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte, variable string) {
		if strings.Contains(variable, "\x00") {
			return
		}
		path := filepath.Join(dir, fmt.Sprint(os.Getpid())+".yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(path, environ("HUBRELAY_SERVER__LISTEN="+variable, "HUBRELAY_AUTH__KEYS="+variable,
			"HUBRELAY_SINKS__X__CONFIG="+variable), kinds())
		if err == nil {
			if err := cfg.Print(&bytes.Buffer{}); err != nil {
				t.Fatal(err)
			}
			return
		}
		var problems config.Problems
		if !errors.As(err, &problems) {
			t.Fatalf("not a list of problems: %v", err)
		}
		for _, p := range problems {
			if p.Variable == "" && (p.Line < 1 || p.Column < 1 || p.File != path) || p.Message == "" {
				t.Errorf("no position: %#v", p)
			}
			if strings.Contains(p.String(), "\n") {
				t.Errorf("more than one line: %q", p.String())
			}
		}
	})
}

// Digest keys of a Slack sink are accepted only if it combines notifications without them.
func TestLoad_DigestOfKindWithDigestOverRate(t *testing.T) {
	for setting, want := range map[string]string{
		"":                "",
		", rate: ''":      "digest.max: has no effect without wait",
		", ordering: hub": "digest.max: has no effect with an ordering",
	} {
		_, err := config.Load(writeConfig(t, keys+"sinks: {a: {type: slack, topics: ['*'], url: "+
			"'https://hooks.slack.com/services/T/B/x', "+
			"digest: {max: 5}"+setting+"}}\n"), environ(), shippedKinds())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", setting, err)
		}
	}
}
