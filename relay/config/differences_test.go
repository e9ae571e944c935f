package config_test

import (
	"slices"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay/config"
)

func TestDifferences(t *testing.T) {
	a := func() *config.Config {
		c := &config.Config{Sinks: map[string]config.Sink{"one": {Type: "webhook"}}}
		c.Auth.Keys, c.Log.Level, c.Server.AllowedOrigins = []config.Key{{Name: "k"}}, "info", []string{"https://a"}
		return c
	}
	b := a()
	b.Sinks, b.Auth.Keys, b.Log.Level = nil, nil, "debug"
	if got := config.Differences(a(), b); len(got) > 0 {
		t.Errorf("%v need no restart", got)
	}
	b.Server.AllowedOrigins, b.Server.TLS.CertFile, b.Auth.TokenTTL = nil, "cert.pem", time.Second
	b.Redis.Retention.History, b.Log.Format, b.Migration.InventoryFile = time.Hour, "json", "inventory.yaml"
	want := []string{
		"server.tls.cert_file", "server.allowed_origins", "redis.retention.history", "auth.token_ttl", "migration.inventory_file", "log.format",
	}
	if got := config.Differences(a(), b); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
