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
	"github.com/hubrelay/hubrelay/relay/internal/migration"
	"github.com/hubrelay/hubrelay/sinks/email"
	"github.com/hubrelay/hubrelay/sinks/exec"
	"github.com/hubrelay/hubrelay/sinks/file"
	"github.com/hubrelay/hubrelay/sinks/pagerduty"
	"github.com/hubrelay/hubrelay/sinks/plugin"
	"github.com/hubrelay/hubrelay/sinks/slack"
	"github.com/hubrelay/hubrelay/sinks/webhook"
)

const configs = "../../../configs/"

func shipped() config.Kinds {
	return config.Kinds{
		Sinks:  []relay.SinkKind{webhook.Kind(), slack.Kind(), file.Kind(), file.Stdout(os.Stdout), exec.Kind(), email.Kind(), pagerduty.Kind(), plugin.Kind("print")},
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

func TestShippedFilesLoad(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, program := range []string{"hubrelay-docker", "hubrelay-brokers", "hubrelay-notify", "logger"} { // three are beside the daemon, one is the system's
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
			if _, err := migration.ReadFile(file); err != nil {
				t.Error(err)
			}
			continue
		}
		cfg, err := config.Load(file, shippedEnviron(), shipped())
		if err != nil {
			t.Error(err)
		} else if len(cfg.Warnings) > 0 {
			t.Errorf("%s warns: %v", file, cfg.Warnings)
		}
	}
}

// commented finds the settings that configs/hubrelay.yaml shows switched off: no space behind the #.
func commented() *regexp.Regexp { return regexp.MustCompile(`(?m)^( *)#([a-z0-9_]+:)`) }

// TestReferenceStatesTheDefaults switches on everything that configs/hubrelay.yaml shows, which must change nothing.
func TestReferenceStatesTheDefaults(t *testing.T) {
	text, err := os.ReadFile(configs + "hubrelay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := commented().ReplaceAllString(string(text), "$1$2")
	if all == string(text) {
		t.Fatal("nothing is commented")
	}
	off, err := config.Load(configs+"hubrelay.yaml", shippedEnviron(), shipped())
	if err != nil {
		t.Fatal(err)
	}
	on, err := config.Load(write(t, all), shippedEnviron(), shipped())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(off, on, equal()); diff != "" {
		t.Errorf("a stated default is not the real one (-real +stated):\n%s", diff)
	}
	var given map[string]any
	if err := yaml.Unmarshal([]byte(all), &given); err != nil {
		t.Fatal(err)
	}
	var stated []string
	paths(given, "", &stated)
	var known []string
	walkSchema(schema(t, shipped()), "", func(path string, _ map[string]any) { known = append(known, path) })
	for _, p := range known {
		// A token in the reference would be a password that everybody knows: the list is explained in comments.
		if key, ok := strings.CutPrefix(p, "/admin/tokens/*/"); ok && strings.Contains(string(text), key) {
			continue
		}
		if !slices.Contains(stated, p) {
			t.Errorf("configs/hubrelay.yaml does not explain %s", p)
		}
	}
	if len(known) < 40 {
		t.Errorf("only %d keys in the schema: %v", len(known), known)
	}
}

// paths lists the keys of a YAML value; items of lists and names of sinks become *.
func paths(v any, path string, out *[]string) {
	*out = append(*out, path)
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if path == "/sinks" || path == "/sources" {
				k = "*"
			}
			paths(x, path+"/"+k, out)
		}
	case []any:
		for _, x := range v {
			paths(x, path+"/*", out)
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
		t.Fatal("the schema differs from one call to the next", err)
	}
	var s map[string]any
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// walkSchema calls visit with each key that a JSON Schema allows, its path in the form of paths.
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

func TestSchemaDescribesEveryKey(t *testing.T) {
	walkSchema(schema(t, shipped()), "", func(path string, s map[string]any) {
		if d, _ := s["description"].(string); d == "" || strings.TrimSpace(d) != d {
			t.Errorf("%s has no description", path)
		}
	})
}

func TestSchema(t *testing.T) {
	text, err := config.JSONSchema(kinds())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/schema.json", string(text))
}

func TestKindsMustFit(t *testing.T) {
	type clash struct {
		testSink
		Timeout int `koanf:"timeout"`
	}
	type untagged struct {
		testSink `koanf:",squash"`
		Other    int
	}
	for _, c := range []relay.SinkConfig{&clash{}, &untagged{}} {
		kind := relay.SinkKind{Type: "odd", Config: func() relay.SinkConfig { return c }}
		_, err := config.Load(write(t, keys), nil, config.Kinds{Sinks: []relay.SinkKind{kind}})
		var problems config.Problems
		if err == nil || errors.As(err, &problems) {
			t.Errorf("%T: %v: a mistake of the kind is not the user's", c, err)
		}
	}
}

func TestWebhookSettings(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"hubrelay.yaml": keys + "sinks: {hook: {type: webhook, url: 'https://example.com/x?y', secret_files: [one]}}\n",
		"one":           "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Load(filepath.Join(dir, "hubrelay.yaml"), nil, shipped())
	if err != nil {
		t.Fatal(err)
	}
	hook, ok := cfg.Sinks["hook"].Settings.(*webhook.Config)
	if !ok || len(hook.SecretFiles) != 1 || hook.SecretFiles[0] != filepath.Join(dir, "one") {
		t.Errorf("secret_files = %v: not beside the configuration", hook.SecretFiles)
	}
	_, err = config.Load(write(t, keys+"sinks:\n  hook:\n    type: webhook\n    url: https://example.com\n    secrets: [whsec_!, oops]\n"), nil, shipped())
	if err == nil || !strings.Contains(err.Error(), ":6:15: sinks.hook.secrets[0]: ") || strings.Contains(err.Error(), "whsec_!") {
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
	for _, text := range []string{"a: &a [*a]", "<<: {}", "? [a]: b\n: c", "{a: http://l:80}", "a: |\n", "a: *b", "- &x\n- *x", "%TAG ! x\n---\n", "...", "a: [x:1, y:]"} {
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

// What Slack gathers by itself takes settings only where it does gather.
func TestDigestOfAKindThatGathers(t *testing.T) {
	for setting, want := range map[string]string{
		"":                "",
		", rate: ''":      "digest.max: says nothing without wait",
		", ordering: hub": "digest.max: says nothing beside an ordering",
	} {
		_, err := config.Load(write(t, keys+"sinks: {a: {type: slack, topics: ['*'], url: 'https://hooks.slack.com/services/T/B/x', "+
			"digest: {max: 5}"+setting+"}}\n"), environ(), shipped())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", setting, err)
		}
	}
}
