package config_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/sinks/exec"
	"github.com/hubrelay/hubrelay/sinks/file"
)

var update = flag.Bool("update", false, "update the golden files")

// testSink has a field of every type that the Config of a sink kind may use.
type testSink struct {
	URL     string            `koanf:"url" doc:"u"`
	Tokens  []string          `koanf:"tokens" secret:"true" doc:"t"`
	Verify  bool              `koanf:"verify" doc:"v"`
	Ratio   float64           `koanf:"ratio" doc:"r"`
	CIDR    netip.Prefix      `koanf:"cidr" doc:"c"`
	Wait    time.Duration     `koanf:"wait" doc:"w"`
	Colours []string          `koanf:"colours" doc:"c"`
	Headers map[string]string `koanf:"headers" doc:"h"`
	Config  map[string]any    `koanf:"config" doc:"c"`
	Shared  `koanf:",squash"`
}

type Shared struct {
	Format string `koanf:"format" enum:"plain,fancy" doc:"f"`
}

func (s *testSink) Check(_ context.Context, env relay.CheckEnv) relay.Report {
	err := s.validate()
	if env.Batch && s.Format == "fancy" {
		err = errors.Join(err, &relay.FieldError{
			Field: "format", Problem: "is too fancy for a batch: choose plain",
		})
	}
	return relay.NewReport(err)
}

func (s *testSink) validate() error {
	var errs []error
	if s.URL == "" {
		errs = append(errs, &relay.FieldError{Field: "url", Problem: "is missing: give the address"})
	}
	for i, t := range s.Tokens {
		if strings.Contains(t, " ") {
			errs = append(errs, &relay.FieldError{Field: fmt.Sprintf("tokens.%d", i), Problem: "holds a space"})
		}
	}
	if s.Ratio < 0 {
		errs = append(errs, errors.New("the ratio does not fit the rest"))
	}
	return errors.Join(errs...)
}

func kinds() config.Kinds {
	open := func() relay.Config {
		return &testSink{
			Verify: true, Ratio: 0.5, Wait: time.Second, Colours: []string{"red", "green", "blue"},
			Shared: Shared{Format: "plain"},
		}
	}
	return config.Kinds{Driver: host.DriverKind("directory"), Sinks: []relay.SinkKind{
		{Type: "test", Config: open}, {Type: "batches", Config: open, Batches: true},
	}}
}

func environ(more ...string) []string {
	return append([]string{"OPS_KEY=0123456789abcdef-ops", "REDIS_PASSWORD=hunter2", "HUBRELAY_KEY=ignored"}, more...)
}

func writeConfig(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hubrelay.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func sinkSettings(t testing.TB, cfg *config.Config, sink string) *testSink {
	t.Helper()
	s, ok := cfg.Sinks[sink].Settings.(*testSink)
	if !ok {
		t.Fatalf("the settings of %s are a %T", sink, cfg.Sinks[sink].Settings)
	}
	return s
}

const keys = "auth: {keys: [{name: ops, key: 0123456789abcdef, hubs: ['*']}]}\n"

func compareGolden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); if the change is intended, run with -update:\n%s", path, diff)
	}
}

func TestLoad_Errors(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no test data", err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			_, err := config.Load(file, environ(), kinds())
			var problems config.Problems
			if !errors.As(err, &problems) {
				t.Fatalf("got %v, want problems", err)
			}
			compareGolden(t, strings.TrimSuffix(file, ".yaml")+".golden",
				strings.ReplaceAll(err.Error(), here+"/", "")+"\n")
			if strings.Contains(err.Error(), "hunter2hunter2") {
				t.Error("an error contains a secret")
			}
		})
	}
}

func TestLoad_EnvironmentErrors(t *testing.T) {
	path := writeConfig(t, keys+"sinks: {my-sink: {type: test, url: u}}\n")
	_, err := config.Load(path, environ(
		"HUBRELAY_SERVER__LISTN=x",
		"HUBRELAY_SERVER__SHUTDOWN_GRACE=soon",
		"HUBRELAY_SINKS__MY_SINK__TOPIC=x",
		"HUBRELAY_SINKS__NEW__URL=https://example.com",
		"HUBRELAY_SERVER__MAX_BODY=1",
		"HUBRELAY_SERVER__TLS__KEY_FILE=/no/such/file",
		"HUBRELAY_NOTHING__LIKE__IT=1",
		"HUBRELAY_SINKS__MY_SINK__CONFIG={",
		"HUBRELAY_LOG__LEVEL=inof",
	), kinds())
	if err == nil {
		t.Fatal("accepted")
	}
	dir := filepath.Dir(path) + string(filepath.Separator)
	compareGolden(t, "testdata/environment.golden", strings.ReplaceAll(err.Error(), dir, "")+"\n")
}

func TestLoad_MissingFile(t *testing.T) {
	_, err := config.Load("testdata/none/hubrelay.yaml", nil, kinds())
	want := "testdata/none/hubrelay.yaml: cannot be read: no such file or directory; name a configuration file " +
		"with -c, or write one with 'hubrelay init'"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestLoad_Defaults(t *testing.T) {
	file := writeConfig(t, keys)
	got, err := config.Load(file, nil, kinds())
	if err != nil {
		t.Fatal(err)
	}
	want := &config.Config{
		Server: config.Server{Listen: "127.0.0.1:8080", MaxBody: 1 << 20, BodyMemory: 64 << 20, BodyMinRate: 4 << 10, TrustedProxiesHeader: "X-Forwarded-For", ShutdownGrace: 15 * time.Second},
		Websocket: config.Websocket{
			Queue: 1 << 20, Recent: 16 << 20, PingInterval: 25 * time.Second, PongTimeout: 50 * time.Second,
			Compression: config.Compression{MinSize: 256, CPU: 100 * time.Millisecond},
		},
		Health: config.Health{Listen: "127.0.0.1:9090"},
		Redis: config.Redis{
			DataDir: filepath.Join(filepath.Dir(file), "hubrelay-data"), Prefix: "hubrelay", Partitions: 1, FullAt: 90,
			Retention: config.Retention{History: 24 * time.Hour, MaxLen: 1e6},
		},
		Audit:   config.Audit{MaxLen: 100_000},
		History: config.History{Deliveries: config.HistoryAll, MaxAge: 24 * time.Hour, MaxBytes: 64 << 20},
		Auth: config.Auth{
			TokenTTL: time.Minute, StreamTTL: 24 * time.Hour,
			Keys: []config.Key{{Name: "ops", Key: "0123456789abcdef", Hubs: []string{"*"}}},
			JWT: config.JWT{
				Algorithms: []string{"RS256", "PS256", "ES256", "EdDSA"}, AccountClaim: "account_id", HubsClaim: "hubs",
				CapabilitiesClaim: "capabilities",
			},
			Forward: config.Forward{Timeout: 2 * time.Second, CacheTTL: time.Minute, StaleTTL: 5 * time.Minute},
		},
		Quotas: config.Quotas{
			Key:      config.Quota{Notifications: 50_000, Bytes: 32 << 20, Burst: 4 * time.Second},
			Account:  config.Quota{Notifications: 50_000, Bytes: 32 << 20, Burst: 4 * time.Second},
			IP:       config.Quota{Burst: 4 * time.Second},
			Requests: config.RequestQuota{PerSecond: 50, Burst: 10 * time.Second},
		},
		Sinks: map[string]config.Sink{},
		Migration: config.Migration{
			Driver: config.Driver{
				Settings: host.NewConfig(),
			}, ServerConcurrency: 2, ExpireAfter: 24 * time.Hour, StallTimeout: 30 * time.Minute,
		},
		Log: config.Log{Level: "info", Format: "auto"},
	}
	if diff := cmp.Diff(want, got, ignoreOrigins()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// ignoreOrigins compares the values of configurations, not their origins.
func ignoreOrigins() cmp.Option {
	return cmp.Options{
		cmpopts.IgnoreUnexported(config.Config{}, host.Config{}, file.Config{},
			exec.Config{}), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Prefix{}),
	}
}

func TestLoad_EnvironmentOverridesFile(t *testing.T) {
	cfg, err := config.Load(writeConfig(t, keys+`
server: {listen: 127.0.0.1:1, allowed_origins: [https://a, https://b, https://c]}
sinks: {my-sink: {type: test, url: https://a, topics: ["*"], colours: [black]}}
`), environ(
		"HUBRELAY_SERVER__LISTEN=127.0.0.1:2",
		"HUBRELAY_SERVER__ALLOWED_ORIGINS=https://x, https://y",
		"HUBRELAY_REDIS__PARTITIONS=4",
		"HUBRELAY_SINKS__MY_SINK__URL=https://b",
		"HUBRELAY_SINKS__MY_SINK__VERIFY=false",
		"HUBRELAY_SINKS__MY_SINK__RETRY__SCHEDULE=1s,2s",
		"HUBRELAY_SINKS__MY_SINK__HEADERS={X-Name: value}",
		"HUBRELAY_SINKS__OTHER__TYPE=test",
		"HUBRELAY_SINKS__OTHER__URL=https://c",
		`HUBRELAY_AUTH__KEYS=[{name: env, key: "${OPS_KEY}", hubs: [h]}]`,
	), kinds())
	if err != nil {
		t.Fatal(err)
	}
	mine := cfg.Sinks["my-sink"]
	own := sinkSettings(t, cfg, "my-sink")
	got := []any{
		cfg.Server.Listen, cfg.Server.AllowedOrigins, cfg.Redis.Partitions, own.URL, own.Verify, mine.Retry.Schedule,
		own.Headers,
		sinkSettings(t, cfg, "other").URL, len(cfg.Sinks), cfg.Auth.Keys[0].Name, own.Colours,
	}
	want := []any{
		"127.0.0.1:2",
		[]string{"https://x", "https://y"},
		4, "https://b", false,
		[]time.Duration{time.Second, 2 * time.Second},
		map[string]string{"X-Name": "value"},
		"https://c", 2, "env",
		[]string{"black"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLoad_WithoutFile(t *testing.T) {
	cfg, err := config.Load("", []string{"HUBRELAY_AUTH__KEYS=[{name: env, key: 0123456789abcdef, hubs: [h]}]"},
		config.Kinds{})
	if err != nil || cfg.Auth.Keys[0].Name != "env" {
		t.Fatal(cfg, err)
	}
	if _, err := config.Load("", nil, config.Kinds{}); err == nil {
		t.Error("a configuration without keys was accepted")
	}
}

func TestLoad_ExpandsSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"$${OPS_KEY}-0123456789":    "${OPS_KEY}-0123456789",
		"${OPS_KEY}${OPS_KEY}":      "0123456789abcdef-ops0123456789abcdef-ops",
		"$OPS_KEY-is-kept-as-it-is": "$OPS_KEY-is-kept-as-it-is",
		"12345678901234567890":      "12345678901234567890",
	} {
		cfg, err := config.Load(writeConfig(t, "auth: {keys: [{name: ops, key: "+text+", hubs: [h]}]}"), environ(),
			config.Kinds{})
		if strings.HasPrefix(text, "$") {
			cfg, err = config.Load(writeConfig(t, "auth: {keys: [{name: ops, key: '"+text+"', hubs: [h]}]}"), environ(),
				config.Kinds{})
		}
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := cfg.Auth.Keys[0].Key; got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestKey_SHA256(t *testing.T) {
	const text = "0123456789abcdef"
	file := filepath.Join(t.TempDir(), "key")
	put := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(text + "\r\n")
	want := sha256.Sum256([]byte(text))
	for _, k := range []config.Key{{Key: text}, {KeyFile: file}, {KeySHA256: fmt.Sprintf("%X", want)}} {
		if got, err := k.SHA256(); err != nil || got != want {
			t.Errorf("%+v: %x, %v", k, got, err)
		}
	}
	put("another-0123456789\n")
	if got, err := (config.Key{KeyFile: file}).SHA256(); err != nil || got == want {
		t.Error("the changed file has no effect:", err)
	}
	for _, s := range []string{"", "short", "a key with white space"} {
		put(s)
		if _, err := (config.Key{Name: "ops", KeyFile: file}).SHA256(); err == nil {
			t.Errorf("accepted %q", s)
		}
	}
}

func TestLoad_Warnings(t *testing.T) {
	path := writeConfig(t, `admin: {listen: ":9091", tokens: [{name: ci, role: viewer, token: 0123456789abcdef}]}
server: {allowed_origins: [http://example.com, http://localhost:3000]}
auth: {keys: [{name: old, key_file: key, hubs: [h], expires: 2020-01-01}]}
`)
	key := filepath.Join(filepath.Dir(path), "key")
	if err := os.WriteFile(key, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(key, 0o644); err != nil { //nolint:gosec // that is what the warning is about
		t.Fatal(err)
	}
	cfg, err := config.Load(path, nil, config.Kinds{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range cfg.Warnings {
		got = append(got, fmt.Sprintf("%d %s", w.Line, w.Path))
	}
	want := []string{
		"1 admin.listen", "2 server.allowed_origins[0]", "3 auth.keys[0].key_file", "3 auth.keys[0].expires",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
