package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/hubrelay/hubrelay/plugins"
	"github.com/hubrelay/hubrelay/relay"
)

// Kind is the plugin's entry in the list of kinds of sinks. The daemon comes with the plugins that builtins names.
func Kind(builtins ...string) relay.SinkKind {
	return relay.SinkKind{
		Type:   "plugin",
		Config: func() relay.SinkConfig { return newConfig(builtins) },
		Open: func(s relay.SinkSettings, c relay.SinkConfig) (relay.Sink, error) {
			cfg, ok := c.(*Config)
			if !ok {
				return nil, fmt.Errorf("open plugin sink %s: its configuration is a %T", s.Name, c)
			}
			return open(s, cfg)
		},
	}
}

// Sink is one plugin. Deliver may be called concurrently.
type Sink struct {
	host *plugins.Host
}

func open(s relay.SinkSettings, c *Config) (*Sink, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open plugin sink %s: %w", s.Name, err)
	}
	config, err := json.Marshal(c.Config)
	if err != nil {
		return nil, fmt.Errorf("open plugin sink %s: config: %w", s.Name, err)
	}
	if len(c.Config) == 0 {
		config = nil
	}
	files := make(map[string]string, len(c.Files))
	for name, sum := range c.Files {
		files[c.path(name)] = sum
	}
	var observe func(plugins.Event)
	if s.Observe != nil {
		observe = func(e plugins.Event) { s.Observe(string(e)) }
	}
	host, err := plugins.New(plugins.Options{
		Name: s.Name, Command: c.command(), Dir: c.path("."), Env: environment(c.Env, os.LookupEnv),
		SHA256: c.SHA256, Files: files, Config: config, PlainSocket: !c.TLS,
		StartupTimeout: c.StartupTimeout, HangTimeout: c.HangTimeout,
		MemoryLimit: int64(c.MemoryLimit), MaxCrashes: c.MaxCrashes,
		Log: s.Log, Observe: observe,
	})
	if err != nil {
		return nil, fmt.Errorf("open plugin sink %s: %w", s.Name, err)
	}
	return &Sink{host: host}, nil
}

// environment resolves an allow-list: NAME is taken from the daemon's environment, if it is there.
func environment(allowed []string, lookup func(string) (string, bool)) []string {
	var list []string
	for _, entry := range allowed {
		if !strings.Contains(entry, "=") {
			value, ok := lookup(entry)
			if !ok {
				continue
			}
			entry += "=" + value
		}
		list = append(list, entry)
	}
	return list
}

// Start starts the plugin in the background. One that cannot be started is tried again, and stops nobody.
func (s *Sink) Start() { s.host.Start() }

// Deliver makes one attempt.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error { return s.host.Deliver(ctx, d) }

// Ailment is why the plugin does not run.
func (s *Sink) Ailment() error { return s.host.Status().Reason }

// Close ends the plugin. It may be called twice.
func (s *Sink) Close() error { return s.host.Close() }
