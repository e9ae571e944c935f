package config_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/sinks/webhook"
)

// An unescaped password shifts the parts of the URL. No part of it may be printed.
func TestLoad_NeverPrintsUnescapedPassword(t *testing.T) {
	for _, url := range []string{
		"redis://:hunter/two@host:6379/0", "redis://:hunter?two@host:6379/0", "redis://u:hunter@two/three@host",
		"redis://:12/hunter?two@host",
	} {
		_, err := config.Load(writeConfig(t, keys), []string{"HUBRELAY_REDIS__URL=" + url}, config.Kinds{})
		if err == nil || !strings.Contains(err.Error(), "percent-encode") {
			t.Errorf("%s: %v", url, err)
		} else if strings.Contains(err.Error(), "hunter") || strings.Contains(err.Error(), "two") {
			t.Errorf("%s shows in %v", url, err)
		}
	}
	for _, url := range []string{
		"unix:///run/redis@main/redis.sock", "redis+sentinel://a:1/master?sentinel_password=x@y",
	} {
		if _, err := config.Load(writeConfig(t, keys), []string{"HUBRELAY_REDIS__URL=" + url},
			config.Kinds{}); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	path := writeConfig(t, keys+"sinks: {a: {type: test, url: 'https://u:hunter@dos/tres@host/x'}}\n")
	cfg, err := config.Load(path, nil, kinds())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := cfg.Print(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "hunter") || strings.Contains(out.String(), "dos") {
		t.Errorf("printed:\n%s", out.String())
	}
}

// Errors of a reload are in the log and the audit log, so a rejected value that may be a secret is not repeated.
func TestLoad_NeverPrintsRejectedSecret(t *testing.T) {
	for text, want := range map[string]string{
		"auth: {forward: {url: 'http://svc:hunter2@verify.internal/v'}}":                             "auth.forward.url: is not an https URL",
		"auth: {jwt: {issuer: 'https://a', audience: b, jwks_url: 'http://idp.internal?t=hunter2'}}": "auth.jwt.jwks_url: is not an https URL",
		"auth:\n  keys:\n  - name: a\n    key: !!hunter2\n":                                          "tags are not supported",
		"auth:\n  keys:\n  - name: a\n    key: |hunter2\n":                                           "there is text after | or >",
		"auth: {keys: [{name: a, key: abc,hunter2, hubs: [h]}]}":                                     "auth.keys[0]: has an unknown key without a value; text with a comma",
		"auth: {keys: [{name: a key: hunter2, hubs: [h]}]}":                                          `contains ": " in text without quotes`,
		"auth: {keys: [{name: a, key_file: /aGVs/hunter2=}]}":                                        "the file cannot be read: no such file",
		"redis: {url_file: 'redis://u:hunter2@h/0'}":                                                 "the file cannot be read: no such file",
		"auth: {keys: [{name: a, key: *hunter2}]}":                                                   "there is no anchor of this name",
		"auth:\n  keys:\n  - name: a\n    key: !hunter2\n":                                           "tags are not supported",
	} {
		_, err := config.Load(writeConfig(t, text+"\n"), nil, config.Kinds{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// YAML rejects the most common errors in patterns and secrets. The messages must name the missing quotes.
func TestLoad_HintsAtMissingQuotes(t *testing.T) {
	for text, want := range map[string]string{
		"sinks: {a: {type: test, url: u, topics: [*.error]}}": `text that begins with * needs quotes, ` +
			`such as "*.error"`,
		"sinks: {a: {type: test, url: u, topics: [!container.error]}}": `text that begins with ! needs quotes, ` +
			`such as "!*.error"`,
		"sinks: {a: {type: test, url: u, topics: [!*.error]}}": `text that begins with ! needs quotes, ` +
			`such as "!*.error"`,
		"sinks:\n  a:\n    type: test\n    topics: *\n": `text that begins with * needs quotes, ` +
			`such as "*.error"`,
		"sinks:\n  a:\n    topics:\n      - *\n      - b\n": `text that begins with * needs quotes, ` +
			`such as "*.error"`,
		"sinks:\n  a:\n    topics:\n      - !container.error\n": `text that begins with ! needs quotes, ` +
			`such as "!*.error"`,
		"sinks:\n  a:\n    when: \"x\" in context.clusters\n": `text that begins with a quoted part ` +
			`needs quotes around the whole text: '"production" in context.clusters'`,
		"redis: {url: ${REDIS_URL}, prefix: p}": `put ${NAME} between quotes inside { } and [ ]`,
	} {
		_, err := config.Load(writeConfig(t, keys+text+"\n"), environ(), kinds())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Variables cannot contain the "-" of a name. An ambiguous variable must set no sink.
func TestLoad_RejectsAmbiguousVariable(t *testing.T) {
	path := writeConfig(
		t,
		keys+"sinks: {a-b: {type: test, url: u}, a_b: {type: test, url: u}, c-d_e: {type: test, url: u}, c_d-e: "+
			"{type: test, url: u}}\n",
	)
	for range 20 {
		cfg, err := config.Load(path, []string{"HUBRELAY_SINKS__A_B__TIMEOUT=7s"}, kinds())
		if err != nil {
			t.Fatal(err)
		}
		if text := cfg.Sinks["a_b"].Timeout.String(); text != "7s" {
			t.Fatalf("sink a_b has timeout %s, want 7s", text)
		}
		_, err = config.Load(path, []string{"HUBRELAY_SINKS__C_D_E__TIMEOUT=7s"}, kinds())
		if err == nil || !strings.Contains(err.Error(), "HUBRELAY_SINKS__C_D_E__TIMEOUT") {
			t.Fatalf("got %v", err)
		}
	}
}

func TestLoad_WarnsAboutIgnoredVariables(t *testing.T) {
	path := writeConfig(t,
		"auth: {keys: [{name: ops, key: '${OPS_KEY}', account_id: '${ACCOUNT}', hubs: ['${HUB}']}]}\n")
	cfg, err := config.Load(path, environ("HUBRELAY_SERVER_LISTEN=:1", "HUBRELAY_URL=x", "HUBRELAY_BILLING_SECRET=y"),
		kinds())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range cfg.Warnings {
		got = append(got, w.String())
	}
	text := strings.Join(got, "\n")
	for _, want := range []string{`"HUBRELAY_SERVER__LISTEN"`, "auth.keys[0].account_id: ", "auth.keys[0].hubs[0]: "} {
		if !strings.Contains(text, want) {
			t.Errorf("no warning has %s", want)
		}
	}
	if len(got) != 3 {
		t.Errorf("warnings:\n%s", text)
	}
}

// A sink of unknown type accepts the keys of all types. The hint for an unknown key must not list them all.
func TestLoad_UnknownKeyOfUnknownSinkType(t *testing.T) {
	_, err := config.Load(writeConfig(t, keys+"sinks: {a: {type: webhok, hobs: [h], tpl_f: x}}\n"), nil, shippedKinds())
	want := "sinks.a.tpl_f: unknown key; the nearest keys are "
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `did you mean "hubs"?`) {
		t.Fatalf("got %v, want %s", err, want)
	}
	for line := range strings.Lines(err.Error()) {
		if len(line) > 200 {
			t.Errorf("got a line of %d bytes: %s", len(line), line)
		}
	}
}

// People nest the settings of a sink below its type, as other programs do.
func TestLoad_SinkTypeAsKey(t *testing.T) {
	_, err := config.Load(writeConfig(t, keys+"sinks: {a: {webhook: {url: https://example.com}}}\n"), nil, shippedKinds())
	want := "sinks.a.webhook: unknown key; it is the type of a sink; add type: webhook, and move these settings one level up"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestLoad_ReportsBrokenMergeOnce(t *testing.T) {
	_, err := config.Load(writeConfig(t, keys+"server: {<<: *nope}\n"), nil, kinds())
	if err == nil || strings.Count(err.Error(), "\n") != 0 {
		t.Errorf("got %v", err)
	}
}

// Comments and blank lines do not count as nesting, but real nesting is limited.
func TestLoad_CountsNestingByIndentation(t *testing.T) {
	long := strings.Repeat("# a\n\n  # b\n\n    # c\n\n", 100) + keys + "sinks:\n"
	for i := range 100 {
		long += fmt.Sprintf(
			"  # one\n\n  s%d:\n    type: test\n    # its url\n    url: https://example.com\n    retry:\n      # "+
				"how often\n      max_age: 1h\n",
			i,
		)
	}
	if _, err := config.Load(writeConfig(t, long), environ(), kinds()); err != nil {
		t.Error(err)
	}
	deep := keys
	for i := range 40 {
		deep += strings.Repeat(" ", i) + "a:\n"
	}
	for _, text := range []string{
		deep, keys + "a: " + strings.Repeat("[", 40), keys + "a:\n  " + strings.Repeat("- ", 40) + "x\n",
	} {
		if _, err := config.Load(writeConfig(t, text), environ(), kinds()); err == nil ||
			!strings.Contains(err.Error(), "levels deep") {
			t.Errorf("%.60q…: %v", text, err)
		}
	}
}

// The address of an incoming webhook is a secret as a whole.
func TestPrint_RedactsSlackURL(t *testing.T) {
	const address = "https://hooks.slack.com/services/T0s3cret/B0s3cret/s3cret"
	dir := t.TempDir()
	for name, text := range map[string]string{
		"slack": address + "\n",
		"hubrelay.yaml": keys + "sinks:\n  one: {type: slack, url: '${SLACK}', topics: ['*.error']}\n" +
			"  two: {type: slack, url_file: slack}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Load(filepath.Join(dir, "hubrelay.yaml"), []string{"SLACK=" + address}, shippedKinds())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := cfg.Print(&out); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Contains(text, "hooks.slack.com") || strings.Contains(text, "s3cret") ||
		!strings.Contains(text, filepath.Join(dir, "slack")) {
		t.Errorf("printed:\n%s", text)
	}
	for _, sink := range []string{
		"{type: slack}", "{type: slack, url: s3cret}", "{type: slack, url: [s3cret]}", "{type: slack, url: " +
			"'http://10.0.0.1/s3cret'}",
		"{type: slack, url: '" + address + "', url_file: good.key}", "{type: slack, url_file: /s3cret/missing}",
	} {
		_, err := config.Load(writeConfig(t, keys+"sinks: {a: "+sink+"}\n"), environ(), shippedKinds())
		if err == nil || strings.Contains(strings.ReplaceAll(err.Error(), "/s3cret/missing", ""), "s3cret") {
			t.Errorf("%s: %v", sink, err)
		}
	}
}

// Credentials of a webhook are expanded from the environment and never printed.
func TestPrint_RedactsWebhookCredentials(t *testing.T) {
	text := keys +
		"sinks:\n  one: {type: webhook, url: 'https://example.com/${PART}', headers: {X-Key: '${PART}', " +
		"authorization: s3cret-2},\n" +
		"    proxy: 'http://me:${PART}@proxy:3128', format: standard, tls: {server_name: other.example}}\n" +
		"  two: {type: webhook, url: 'https://example.com', bearer: '${PART}'}\n"
	cfg, err := config.Load(writeConfig(t, text), []string{
		"PART=s3cret-1", "HUBRELAY_SINKS__TWO__HEADERS={X-A: s3cret-3}",
	},
		shippedKinds())
	if err != nil {
		t.Fatal(err)
	}
	one, ok := cfg.Sinks["one"].Settings.(*webhook.Config)
	if !ok || one.Headers["X-Key"] != "s3cret-1" || one.Proxy != "http://me:s3cret-1@proxy:3128" ||
		one.TLS.ServerName != "other.example" {
		t.Errorf("loaded %T", cfg.Sinks["one"].Settings)
	}
	var out bytes.Buffer
	if err := cfg.Print(&out); err != nil {
		t.Fatal(err)
	}
	if printed := out.String(); strings.Contains(printed, "s3cret") ||
		!strings.Contains(printed, "X-A: \"(redacted)\"") ||
		!strings.Contains(printed, "http://(redacted)@proxy:3128") {
		t.Errorf("printed:\n%s", printed)
	}
	for _, bad := range []string{
		"headers: {X-A: \"s3cret\\n\"}", "headers: {webhook-id: s3cret}", "headers: {X-A: [s3cret]}", "headers: s3cret",
		"bearer: [s3cret]",
		"bearer: 's3cret s3cret'", "proxy: s3cret", "proxy: 'http://me:s3cret@proxy/s3cret'", "format: other",
	} {
		_, err := config.Load(writeConfig(t, keys+"sinks: {a: {type: webhook, url: 'https://example.com', "+bad+"}}\n"),
			environ(), shippedKinds())
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
