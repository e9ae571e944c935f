package plugin

import (
	"context"

	"github.com/hubrelay/hubrelay/plugins"
	"github.com/hubrelay/hubrelay/plugins/settings"
	"github.com/hubrelay/hubrelay/relay"
)

// Kind is the plugin's entry in the list of kinds of sinks. The daemon comes with the plugins that builtins names.
func Kind(builtins ...string) relay.SinkKind {
	return relay.SinkKind{
		Type:    "plugin",
		Config:  func() relay.SinkConfig { return settings.New(builtins...) },
		Batches: true,
		Open:    relay.OpenAs("plugin sink", open),
	}
}

// Sink is one plugin. Deliver may be called concurrently.
type Sink struct {
	host *plugins.Host
}

func open(s relay.SinkSettings, c *settings.Plugin) (*Sink, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	o, err := c.Options(s.Name)
	if err != nil {
		return nil, err
	}
	if o.Log = s.Log; s.Observe != nil {
		o.Observe = func(e plugins.Event) { s.Observe(string(e)) }
	}
	host, err := plugins.New(o)
	if err != nil {
		return nil, err
	}
	return &Sink{host: host}, nil
}

// Start starts the plugin in the background. One that cannot be started is tried again, and stops nobody.
func (s *Sink) Start() { s.host.Start() }

// Deliver makes one attempt.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error { return s.host.Deliver(ctx, d) }

// Ailment is why the plugin does not run.
func (s *Sink) Ailment() error { return s.host.Status().Reason }

// Close ends the plugin. It may be called twice.
func (s *Sink) Close() error { return s.host.Close() }
