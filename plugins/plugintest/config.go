package plugintest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay"
)

const unknownKey = "a_key_that_hubrelay_made_up"

// configWithUnknownKey returns the configuration of the plugin with a key that does not exist.
func (p *Plugin) configWithUnknownKey() (json.RawMessage, error) {
	var config map[string]any
	if len(p.Config) > 0 {
		if err := json.Unmarshal(p.Config, &config); err != nil {
			return nil, err
		}
	}
	if config == nil {
		config = map[string]any{}
	}
	config[unknownKey] = true
	return json.Marshal(config)
}

// rejectsUnknownKey starts the plugin with a key that does not exist.
func rejectsUnknownKey(ctx context.Context, p Plugin, open func(Plugin) (*checked, error)) error {
	var err error
	if p.Config, err = p.configWithUnknownKey(); err != nil {
		return err
	}
	k, err := open(p)
	if err != nil {
		return err
	}
	defer func() { _ = k.host.Close() }()
	switch err = k.first.do(ctx); {
	case err == nil:
		return errors.New("it starts with the key " + unknownKey +
			": reject unknown keys with INVALID_ARGUMENT, so users find typos")
	case !strings.Contains(err.Error(), "rejects its configuration"):
		return fmt.Errorf("it fails, but does not return INVALID_ARGUMENT: %w", err)
	}
	return nil
}

// checkOptional checks the optional calls of the protocol, each in its own process.
func (p *Plugin) checkOptional(ctx context.Context, say func(name string, advice bool, err error) bool) {
	const finds = "finds a mistake in its configuration before it runs (Validate)"
	problems, err := p.validate(ctx, p.Config)
	switch {
	case errors.Is(err, host.ErrUnsupported):
		say(
			finds, true, errors.New(
				"it does not implement Validate, so 'hubrelay config check' and reloads find no mistakes",
			),
		)
	case err != nil:
		say(finds, false, err)
	case len(problems) > 0:
		say(
			finds, false, errors.New(
				"it rejects the configuration that it has run with: "+strings.TrimSpace(problems[0].Error()),
			),
		)
	default:
		say(finds, true, p.reportsMistake(ctx))
	}
	if p.Kind == host.KindDriver {
		return
	}
	for _, d := range []relay.Delivery{sampleDelivery("1", 100), sampleDigest(3)} {
		_, err := host.Explain(ctx, newRun(*p).hostOptions(p.Config), d)
		if errors.Is(err, host.ErrUnsupported) {
			return // this call is optional
		}
		if host.IsRejected(err) {
			err = nil // a rejection is a response, too
		}
		what := "an event"
		if d.Digest != nil {
			what = "a digest"
		}
		say("explains "+what+" for 'hubrelay sinks explain'", false, err)
	}
}

func (p *Plugin) validate(ctx context.Context, config json.RawMessage) ([]relay.FieldError, error) {
	return host.Validate(ctx, p.Kind, newRun(*p).hostOptions(config))
}

func (p *Plugin) reportsMistake(ctx context.Context) error {
	config, err := p.configWithUnknownKey()
	if err != nil {
		return err
	}
	problems, err := p.validate(ctx, config)
	if err == nil && len(problems) == 0 {
		return errors.New("it accepts the unknown key " + unknownKey)
	}
	return err
}
