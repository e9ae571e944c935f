package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

func TestConfig_SecurityWarnings(t *testing.T) {
	t.Parallel()
	const strong = "k7Jq2xV9mB4tZ8sW1nRdF3"
	key := func(text string) string {
		return "auth: {keys: [{name: a, key: " + text + ", account_id: acme, hubs: [h]}]}\n"
	}
	weakFile := filepath.Join(t.TempDir(), "weak.key")
	if err := os.WriteFile(weakFile, []byte("changeme-changeme-changeme\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const readable = ": is a secret in a file that every user of this machine can read"
	fromVariable := key(`"${KEY}"`)
	for _, c := range []struct {
		name, text string
		mode       os.FileMode
		want       string // "path: message", or "" for no warning
	}{
		{"nothing to say", key(strong), 0o600, ""},
		{"a short key", key("k7Jq2xV9mB4tZ8sW"), 0o600, "auth.keys[0].key: has fewer than 20 characters"},
		{"a series", key(`"0123456789abcdef0123456789abcdef"`), 0o600, "auth.keys[0].key: is easy to guess"},
		{"words", key("my-secret-api-key-123"), 0o600, "auth.keys[0].key: is easy to guess"},
		{"one character", key("aaaaaaaaaaaaaaaaaaaaaaaa"), 0o600, "auth.keys[0].key: is easy to guess"},
		{
			"a key in a file", "auth: {keys: [{name: a, key_file: " + weakFile + ", account_id: acme, hubs: [h]}]}\n", 0o600,
			"auth.keys[0].key_file: is easy to guess",
		},
		{
			"an admin token", fromVariable + "admin: {listen: '127.0.0.1:9091', tokens: " +
				"[{name: a, role: viewer, token: password-password}]}\n", 0o600,
			"admin.tokens[0].token: is easy to guess",
		},
		{
			"no account", "auth: {keys: [{name: a, key: " + strong + ", hubs: [h]}]}\n", 0o600,
			`auth.keys[0].account_id: is missing, so the key "a" sees only events without an account`,
		},
		{"a producer needs no account", "auth: {keys: [{name: a, key: " + strong +
			", hubs: [h], capabilities: [notifications-publish]}]}\n", 0o600, ""},
		{
			"an audit file in no directory", fromVariable + "audit: {file: /nonexistent/audit.log}\n", 0o600,
			"audit.file: cannot be written at present: there is no directory /nonexistent",
		},
		{"an audit file", fromVariable + "audit: {file: " + filepath.Join(t.TempDir(), "audit.log") + "}\n", 0o600, ""},
		{
			"all interfaces without TLS", fromVariable + "server: {listen: '0.0.0.0:8080'}\n", 0o600,
			"server.listen: accepts keys from other machines without TLS",
		},
		{
			"a proxy adds TLS", fromVariable + "server: {listen: ':8080', trusted_proxies: [10.0.0.1]}\n", 0o600, "",
		},
		{
			"plaintext Redis", fromVariable + "redis: {url: 'redis://redis.example:6379'}\n", 0o600,
			"redis.url: sends its password and all events unencrypted to another machine",
		},
		{"plaintext Redis on this machine", fromVariable + "redis: {url: 'redis://127.0.0.1:6379'}\n", 0o600, ""},
		{"Redis with TLS", fromVariable + "redis: {url: 'rediss://redis.example:6379'}\n", 0o600, ""},
		{
			"a secret that everyone can read", key(strong), 0o644,
			"auth.keys[0].key" + readable,
		},
		{"a secret from the environment", fromVariable, 0o644, ""},
		{
			"secrets of all kinds", fromVariable + "redis: {url: 'rediss://:pass@redis.example:6379'}\n" +
				"sources: {up: {type: hub, url: 'https://hub.example', hub_id: h, key: " + strong + "}}\n", 0o644,
			"redis.url" + readable + "\nsources.up.key" + readable,
		},
	} {
		file := filepath.Join(t.TempDir(), "hubrelay.yaml")
		if err := os.WriteFile(file, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(file, []string{"KEY=" + strong}, kinds())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, w := range cfg.SecurityWarnings() {
			got = append(got, w.Path+": "+w.Message)
			if strings.Contains(w.String(), strong) || w.Hint == "" {
				t.Errorf("%s: the warning shows a secret or gives no advice: %s", c.name, w)
			}
		}
		if strings.Join(got, "\n") != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
