package config_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

func TestRestartRequired(t *testing.T) {
	a := func() *config.Config {
		c := &config.Config{Sinks: map[string]config.Sink{"one": {Type: "webhook"}}}
		c.Auth.Keys, c.Log.Level, c.Server.AllowedOrigins = []config.Key{{Name: "k"}}, "info", []string{"https://a"}
		return c
	}
	b := a()
	b.Sinks, b.Auth.Keys, b.Log.Level = nil, nil, "debug"
	if got := config.RestartRequired(a(), b); len(got) > 0 {
		t.Errorf("got %v, want none", got)
	}
	b.Server.AllowedOrigins, b.Server.TLS.CertFile, b.Auth.TokenTTL = nil, "cert.pem", time.Second
	b.Redis.Retention.History, b.Log.Format, b.Migration.InventoryFile = time.Hour, "json", "inventory.yaml"
	want := []string{
		"server.tls.cert_file", "server.allowed_origins", "redis.retention.history", "auth.token_ttl",
		"migration.inventory_file", "log.format",
	}
	if got := config.RestartRequired(a(), b); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestDiffKeys(t *testing.T) {
	of := func(keys ...config.Key) *config.Config { return &config.Config{Auth: config.Auth{Keys: keys}} }
	before := of(config.Key{Name: "stays", Key: "a"}, config.Key{Name: "goes", Key: "b"}, config.Key{
		Name: "other", Key: "c", Hubs: []string{"x"},
	})
	after := of(config.Key{Name: "comes", Key: "b"}, config.Key{Name: "other", Key: "c", Hubs: []string{"y"}},
		config.Key{Name: "stays", Key: "a"})
	want := config.Changes{Added: []string{"comes"}, Changed: []string{"other"}, Removed: []string{"goes"}, Kept: 1}
	if got := config.DiffKeys(before, after); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestDiffAdminTokens(t *testing.T) {
	of := func(tokens ...config.AdminToken) *config.Config {
		return &config.Config{Admin: config.Admin{Tokens: tokens}}
	}
	before := of(config.AdminToken{Name: "goes"}, config.AdminToken{Name: "other", Role: "operator"})
	after := of(config.AdminToken{Name: "other", Role: "viewer"}, config.AdminToken{Name: "comes"})
	want := config.Changes{Added: []string{"comes"}, Changed: []string{"other"}, Removed: []string{"goes"}}
	if got := config.DiffAdminTokens(before, after); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A warning is new once, wherever it is in the file.
func TestNewWarnings(t *testing.T) {
	w := func(line int, path, text string) yamldoc.Problem {
		return yamldoc.Problem{File: "a.yaml", Line: line, Column: 3, Path: path, Message: text}
	}
	before := &config.Config{Warnings: []yamldoc.Problem{
		w(3, "sinks.a.url_file", "a can be read"), w(5, "auth.keys[0]", "is readable"), w(9, "sinks.b", "is unsigned"),
	}}
	after := &config.Config{Warnings: []yamldoc.Problem{
		w(2, "sinks.c", "is unsigned"), w(4, "sinks.a.url_file", "b can be read"), w(12, "sinks.b", "is unsigned"),
		w(13, "auth.keys[1]", "is readable"), w(14, "auth.keys[2]", "is readable"),
	}}
	want := []yamldoc.Problem{after.Warnings[0], after.Warnings[1], after.Warnings[4]}
	if got := config.NewWarnings(before, after); !slices.Equal(got, want) || len(after.Warnings) != 5 {
		t.Errorf("got %v, want %v", got, want)
	}
}
