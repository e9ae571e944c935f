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

func TestPlugin(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, plugintest.Plugin{
		Kind: host.KindDriver, Command: plugintest.Self(), Env: []string{"GORACE=atexit_sleep_ms=0"},
		Config:         json.RawMessage(`{"health_timeout":"90s","settle":"1s","keep_source_volumes":true}`),
		StartupTimeout: time.Minute, Timeout: 30 * time.Second,
	})
}
