package host

import (
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
)

// DriverKind returns the kind of migration drivers that run as plugins. builtins names the drivers that are part of the
// daemon.
func DriverKind(builtins ...string) *relay.DriverKind {
	return &relay.DriverKind{
		Config: func() relay.Config {
			c := NewConfig(builtins...)
			c.kind = KindDriver
			return c
		},
		Given: func(c relay.Config) bool {
			own, ok := c.(*Config)
			return ok && own.IsSet()
		},
		Open: func(s relay.DriverSettings, c relay.Config) (relay.Driver, error) {
			cfg, ok := c.(*Config)
			if !ok {
				return nil, fmt.Errorf("open the driver: its configuration is a %T", c)
			}
			return openDriver(s, cfg.WithDir(s.Dir))
		},
	}
}

func openDriver(s relay.DriverSettings, c *Config) (relay.Driver, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open the driver: %w", err)
	}
	o, err := c.Options("driver")
	if err != nil {
		return nil, fmt.Errorf("open the driver: %w", err)
	}
	if s.Relay != "" {
		o.Env = append(o.Env, RelayVariable+"="+s.Relay)
	}
	if o.Log = s.Log; s.CountEvent != nil {
		o.Observe = func(e Event) { s.CountEvent(string(e)) }
	}
	return NewDriver(o)
}
