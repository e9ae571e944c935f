package main

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/plugins/plugintest"
)

// The test binary is also the plugin.
func TestMain(m *testing.M) { os.Exit(plugintest.Main(m, main)) }

// TestPlugin checks the plugin while its broker is not available.
func TestPlugin(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, plugintest.Plugin{
		Kind: host.KindSink, Command: plugintest.Self(), Env: []string{"GORACE=atexit_sleep_ms=0"},
		Config:         json.RawMessage(`{"broker":"nats","addresses":["127.0.0.1:1"]}`),
		StartupTimeout: time.Minute, Timeout: 30 * time.Second,
	})
}
