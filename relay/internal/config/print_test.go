package config_test

import (
	"bytes"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

func TestLoad_FullExample(t *testing.T) {
	cfg, err := config.Load("testdata/full.yml", environ(), kinds())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := cfg.Server.PublicURL, "https://events.example.com"; got != want {
		t.Errorf("public_url = %q, want %q", got, want)
	}
	if got, want := cfg.Redis.URL, "redis://user:hunter2@localhost:6379/1?db=2"; got != want {
		t.Errorf("redis.url = %q, want %q", got, want)
	}
	if got := cfg.Auth.Keys[1].AccountID; got != "0123" {
		t.Errorf("account_id = %q, want the original digits", got)
	}
	alpha, zeta := cfg.Sinks["alpha"], cfg.Sinks["zeta"]
	want := &testSink{
		URL: "https://example.com", Tokens: []string{"first-token", "0123456789abcdef-ops"}, Verify: true, Ratio: 0.5,
		CIDR: netip.MustParsePrefix("10.0.0.0/8"), Wait: time.Second, Colours: []string{"red", "green", "blue"},
		Headers: map[string]string{"a": "x y", "b": "2"},
		Config:  map[string]any{"n": int64(1), "list": []any{true, 1.5, "text"}},
		Shared:  Shared{Format: "plain"},
	}
	if diff := cmp.Diff(want, alpha.Settings, ignoreOrigins()); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]time.Duration{time.Second}, alpha.Retry.Schedule); diff != "" {
		t.Errorf("a list must replace the default schedule (-want +got):\n%s", diff)
	}
	if zeta.Hubs != nil || len(zeta.Topics) != 2 {
		t.Errorf("zeta: hubs %v, topics %v", zeta.Hubs, zeta.Topics)
	}
	var out bytes.Buffer
	if err := cfg.Print(&out); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "testdata/full.print", strings.ReplaceAll(out.String(), here, "/here"))
	for _, s := range []string{"hunter2", "0123456789abcdef", "first-token", "pass@", "/secret/path"} {
		if strings.Contains(out.String(), s) {
			t.Errorf("the output contains %q", s)
		}
	}
}

// TestPrint_RoundTrips loads the printed configuration and compares it.
func TestPrint_RoundTrips(t *testing.T) {
	cfg, err := config.Load("testdata/full.yml", environ(), kinds())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := cfg.Print(&out); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(out.String(), `key: "(redacted)"`, "key: '${OPS_KEY}'")
	text = strings.ReplaceAll(text, `"(redacted)", "(redacted)"`, "first-token, '${OPS_KEY}'")
	again, err := config.Load(writeConfig(t, text), environ("HUBRELAY_REDIS__URL="+cfg.Redis.URL,
		"HUBRELAY_SINKS__ZETA__URL="+sinkSettings(t, cfg, "zeta").URL), kinds())
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	ignore := cmpopts.IgnoreFields(config.Config{}, "Warnings")
	if diff := cmp.Diff(cfg, again, ignoreOrigins(), ignore); diff != "" {
		t.Errorf("(-loaded +printed and loaded):\n%s", diff)
	}
}
