// Package plugin delivers notifications to an external program in its own process.
//
// It passes its configuration, a host.Config, to package host, and imports only that and relay. Retries, schedules,
// limits and dead letters belong to relay/internal/delivery.
package plugin

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay"
)

var (
	_ relay.Sink                = (*Sink)(nil)
	_ relay.Service             = (*Sink)(nil)
	_ relay.ConcurrencyReporter = (*Sink)(nil)
	_ relay.Previewer           = (*Sink)(nil)
)

// Kind describes the sink type plugin. builtins are the names of the plugins that the daemon contains.
func Kind(builtins ...string) relay.SinkKind {
	return relay.SinkKind{
		Type:    "plugin",
		Config:  func() relay.Config { return host.NewConfig(builtins...) },
		Batches: true,
		Probes:  true,
		Open:    relay.OpenAs("plugin sink", open),
	}
}

// Sink delivers to one plugin. Deliver may be called concurrently.
type Sink struct {
	host    *host.Host
	options host.Options
	command []string
}

func open(s relay.SinkSettings, c *host.Config) (*Sink, error) {
	c = c.WithDir(s.Dir)
	if err := c.Validate(); err != nil {
		return nil, err
	}
	o, err := c.Options(s.Name)
	if err != nil {
		return nil, err
	}
	if o.Log = s.Log; s.CountEvent != nil {
		o.Observe = func(e host.Event) { s.CountEvent(string(e)) }
	}
	o.WorksElsewhere = s.WorksElsewhere
	host, err := host.New(o)
	if err != nil {
		return nil, err
	}
	return &Sink{host: host, options: o, command: append(slices.Clone(c.Command), c.Args...)}, nil
}

// Start starts the plugin in the background, and again if that fails. Other sinks do not wait for it.
func (s *Sink) Start() { s.host.Start() }

// ReportConcurrency implements [relay.ConcurrencyReporter]. The credits of the plugin limit the attempts.
func (s *Sink) ReportConcurrency(report func(n int)) { s.host.ReportConcurrency(report) }

// Deliver makes one attempt.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error { return s.host.Deliver(ctx, d) }

// Preview starts the plugin, returns what it would send, and stops it. If the plugin cannot tell, Preview returns its
// input.
func (s *Sink) Preview(ctx context.Context, d relay.Delivery) (relay.Preview, error) {
	given, err := s.pluginInput(d)
	if err != nil {
		return given, err
	}
	shown, err := host.Explain(ctx, s.options, d) // bounded by startup_timeout
	switch {
	case err == nil:
		return shown, nil
	case host.IsRejected(err):
		return relay.Preview{}, err
	case errors.Is(err, host.ErrUnsupported):
		given.Note = "input of the plugin; it does not implement Explain"
	default:
		given.Note = "input of the plugin; Explain failed: " + err.Error()
	}
	return given, nil
}

// pluginInput returns the input of the plugin: the notifications, one line per notification of a batch, and a digest as
// [relay.Delivery.Payload] encodes it. Arguments are not shown, because they may contain secrets.
func (s *Sink) pluginInput(d relay.Delivery) (relay.Preview, error) {
	var payload []byte
	for i, n := range d.Notifications {
		if i > 0 {
			payload = append(payload, '\n')
		}
		payload = append(payload, n.Data...)
	}
	if d.Digest != nil || !d.Batch && len(d.Notifications) != 1 {
		var err error
		if payload, err = d.Payload(); err != nil {
			return relay.Preview{}, err
		}
	}
	target := s.command[0]
	if len(s.command) > 1 {
		target += " …"
	}
	return relay.Preview{
		Method: "give", Target: target, Payload: payload,
		Headers: []relay.Header{{Name: "delivery", Value: d.ID}, {Name: "attempt", Value: strconv.Itoa(d.Attempt)}},
	}, nil
}

// Health returns why the plugin is not running, or nil.
func (s *Sink) Health() error { return s.host.Status().Reason }

// Resume starts a plugin that has crashed too often.
func (s *Sink) Resume() { s.host.Resume() }

// Close stops the plugin. It may be called twice.
func (s *Sink) Close() error { return s.host.Close() }
