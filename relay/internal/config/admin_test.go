package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

const anyKey = "auth: {keys: [{name: a, key: 0123456789abcdef, hubs: ['*']}]}\n"

func TestAdmin_Errors(t *testing.T) {
	const token = "{name: ci, role: operator, token: fedcba9876543210}"
	for text, want := range map[string]string{
		"admin: {listen: '127.0.0.1:9090'}": "admin.listen: is " +
			"a TCP address and requires admin.tokens; remove admin.listen to use a unix socket, or add a token " +
			"with 'hubrelay keys new --admin'",
		"admin: {listen: '127.0.0.1:9090', tokens: [" + token +
			"]}": "admin.listen: is also the address of another listener",
		"admin: {listen: '127.0.0.1:8080', tokens: [" + token +
			"]}": "admin.listen: is also the address of another listener",
		"admin: {listen: localhost, tokens: [" + token +
			"]}": "admin.listen: \"localhost\" is not an address",
		"admin: {listen: 'unix:///run/admin.sock'}": "admin.listen: \"unix:///run/admin.sock\" is not an address",
		"health: {listen: '127.0.0.1:8080'}": "health.listen: is " +
			"the same address as server.listen",
		"health: {listen: ''}": "health.listen: " +
			"\"\" is not an address",
		"admin: {listen: ':9091', tokens: [{name: ci, token: fedcba9876543210}]}": "admin.tokens[0].role: " +
			"is missing",
		"admin: {listen: ':9091', tokens: [{name: ci, role: root, token: 0123456789}]}": "admin.tokens[0].role: " +
			"\"root\" is not a valid value; choose one of viewer, operator, admin",
		"admin: {listen: ':9091', tokens: [{name: ci, role: admin}]}": "admin.tokens[0]: " +
			"has no token; set one of token, token_file and token_sha256",
		"admin: {listen: ':9091', tokens: [{name: ci, role: admin, token: short}]}": "admin.tokens[0].token: " +
			"is too short",
		"admin: {listen: ':9091', tokens: [{name: ci, role: admin, token_sha256: beef}]}": "admin.tokens[0]." +
			"token_sha256: is not 64 hexadecimal digits",
		"admin: {listen: ':9091', tokens: [{role: admin, token: fedcba9876543210}]}": "admin.tokens[0].name:" +
			" is missing",
		"admin: {listen: ':9091', tokens: [" + token + ", " + token +
			"]}": "admin.tokens[1].name: \"ci\" is also the name of admin.tokens[0]",
		"admin: {listen: ':9091', tokens: [" + token +
			"], tls: {cert_file: hubrelay.yaml}}": "admin.tls.key_file: is required",
	} {
		_, err := config.Load(writeConfig(t, anyKey+text+"\n"), nil, config.Kinds{})
		var problems yamldoc.Problems
		if !errors.As(err, &problems) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "fedcba9876543210") {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

func TestAdmin_Warnings(t *testing.T) {
	for text, want := range map[string]string{
		"admin: {listen: ':9091', tokens: [{name: ci, role: admin, token: fedcba9876543210}]}": "admin.listen: " +
			"is reachable from other machines without TLS",
		"admin: {tokens: [{name: ci, role: admin, token: fedcba9876543210}]}": "admin: tokens and tls " +
			"have no effect without admin.listen",
		"admin: {listen: '127.0.0.1:9091', tokens: [{name: ci, role: admin, token: fedcba9876543210}]}": "",
		"health: {listen: ':9090'}": "",
	} {
		cfg, err := config.Load(writeConfig(t, anyKey+text+"\n"), nil, config.Kinds{})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for _, w := range cfg.Warnings {
			got = append(got, w.String())
		}
		if joined := strings.Join(got, "\n"); !strings.Contains(joined, want) || want == "" && joined != "" {
			t.Errorf("%s: got warnings %q, want %q", text, joined, want)
		}
	}
}

func TestAdminToken_RereadsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	token := config.AdminToken{Name: "ci", Role: "admin", TokenFile: file}
	var digests [2][32]byte
	for i, text := range []string{"0123456789abcdef\n", "another-0123456789abcdef"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		if digests[i], err = token.Digest(); err != nil {
			t.Fatal(err)
		}
	}
	if digests[0] == digests[1] {
		t.Error("the changed file has no effect")
	}
}

// A command finds the daemon even if other settings are invalid or secrets are missing in its environment.
func TestLoadAdminEndpoint(t *testing.T) {
	text := "server: {listen: nonsense}\nredis: {data_dir: /var/lib/x}\nhealth: {listen: ':9100'}\n" +
		"admin: {listen: '127.0.0.1:9091', tokens: [{name: ci, role: admin, token: '${NOT_SET}'}]}\n"
	got, err := config.LoadAdminEndpoint(writeConfig(t, text), nil)
	want := config.AdminEndpoint{
		Listen: "127.0.0.1:9091", DataDir: "/var/lib/x", HealthListen: ":9100",
		Relay: config.Redis{DataDir: "/var/lib/x", Prefix: "hubrelay"}.Identity(),
	}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if _, err := config.LoadAdminEndpoint(
		writeConfig(t, "admin: {listen: nonsense, tokens: [{name: ci, role: admin, token: 0123456789abcdef}]}"), nil,
	); err == nil {
		t.Error("accepted a bad admin.listen")
	}
	got, err = config.LoadAdminEndpoint("", []string{"HUBRELAY_REDIS__DATA_DIR=/data"})
	if want := (config.AdminEndpoint{DataDir: "/data", HealthListen: "127.0.0.1:9090"}); err != nil || got != want {
		t.Errorf("without a file: got %+v, %v; want %+v", got, err, want)
	}
}

// A command must not send its token unencrypted because it cannot read the daemon's certificate.
func TestLoadAdminEndpoint_UnreadableCertificate(t *testing.T) {
	got, err := config.LoadAdminEndpoint(
		writeConfig(
			t,
			"admin: {listen: '127.0.0.1:9091', tokens: [{name: ci, role: admin, token: 0123456789abcdef}], tls: "+
				"{cert_file: /nowhere/crt, key_file: /nowhere/key}}",
		),
		nil,
	)
	if err != nil || !got.TLS {
		t.Errorf("got %+v, %v; want TLS", got, err)
	}
}

func TestRedis_Identity(t *testing.T) {
	id := func(url, dir, prefix string) string {
		return config.Redis{URL: url, DataDir: dir, Prefix: prefix}.Identity()
	}
	base := id("redis://:one@host:6379/1", "a", "hubrelay")
	for url, same := range map[string]bool{
		"redis://:two@host:6379/1": true, "redis://host:6379/2": false, "redis://other:6379/1": false,
		"redis://host:6379/1?db=3": false,
	} {
		if got := id(url, "b", "hubrelay"); (got == base) != same {
			t.Errorf("%s: got same identity %v, want %v", url, got == base, same)
		}
	}
	if id("unix:///run/redis.sock?db=1", "", "") == id("unix:///run/redis.sock?db=2", "", "") {
		t.Error("two databases have the same identity")
	}
	if id("", "a", "x") == id("", "b", "x") || id("", "a", "x") == id("", "a", "y") ||
		id("memory:", "a", "x") != id("", "a", "x") {
		t.Error("the identity ignores the data directory or the prefix")
	}
}
