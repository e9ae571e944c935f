package plugintest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/plugins"
	"github.com/hubrelay/hubrelay/relay"
)

// Plugin is the program to check.
type Plugin struct {
	// Command is the program and its arguments.
	Command []string
	// Env is its environment, NAME=value.
	Env []string
	// Config is what it is configured with, a JSON object; empty is {}.
	Config json.RawMessage
	// PlainSocket is for plugins that cannot do TLS.
	PlainSocket bool
	// StartupTimeout bounds the start, Timeout each answer; 10 s where zero.
	StartupTimeout, Timeout time.Duration
	// Log gets what the plugin prints; it may be nil.
	Log *slog.Logger
}

// Result is the outcome of one check.
type Result struct {
	// Name says what was checked.
	Name string
	// Err is why it failed, nil where it did not.
	Err error
	// Advice is true where a failure breaks no rule, but is a trap for operators.
	Advice bool
}

// run is a plugin that is being checked.
type run struct {
	p    Plugin
	host *plugins.Host

	mu     sync.Mutex
	events map[plugins.Event]int
}

// Check checks everything and calls report after each check. After a check without which the others mean nothing it stops. It
// tells whether no rule was broken.
func Check(ctx context.Context, p Plugin, report func(Result)) bool {
	for _, d := range []*time.Duration{&p.StartupTimeout, &p.Timeout} {
		if *d <= 0 {
			*d = 10 * time.Second
		}
	}
	good := true
	say := func(name string, advice bool, err error) bool {
		report(Result{Name: name, Err: err, Advice: advice})
		good = good && (err == nil || advice)
		return err == nil
	}
	r, err := newRun(p, p.Config)
	if err != nil {
		say("the command can be used", false, err)
		return false
	}
	defer func() { _ = r.host.Close() }()
	if !say("starts, is healthy, takes its configuration and answers", false, r.answers(ctx, sample("1", 100), 1)) {
		return false
	}
	for _, c := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"answers the next attempt of the same delivery", func(ctx context.Context) error { return r.answers(ctx, sample("1", 100), 2) }},
		{"answers a notification of 256 KiB", func(ctx context.Context) error { return r.answers(ctx, sample("2", 256<<10-1000), 1) }},
		{"answers a digest of 100", func(ctx context.Context) error { return r.answers(ctx, digest(100), 1) }},
		{"answers 1,000 at once, each exactly once", r.many},
		{"still runs, as the same process", r.alive},
		{"ends within 3 s of being asked", r.ends},
		{"ends when the daemon is killed (end of its standard input)", func(ctx context.Context) error { return orphan(ctx, p) }},
	} {
		say(c.name, false, c.do(ctx))
	}
	say("refuses an unknown key in its configuration", true, refuses(ctx, p))
	return good
}

func newRun(p Plugin, config json.RawMessage) (*run, error) {
	r := &run{p: p, events: map[plugins.Event]int{}}
	host, err := plugins.New(plugins.Options{
		Name: "check", Command: p.Command, Env: p.Env, Config: config, PlainSocket: p.PlainSocket,
		StartupTimeout: p.StartupTimeout, MaxCrashes: 1, Log: p.Log,
		Observe: func(e plugins.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events[e]++
		},
	})
	r.host = host
	return r, err
}

func (r *run) count(e plugins.Event) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events[e]
}

// answers wants any answer of the plugin's own.
func (r *run) answers(ctx context.Context, d relay.Delivery, attempt int) error {
	timeout := r.p.Timeout
	if r.host.Status().State != plugins.StateRunning {
		timeout += r.p.StartupTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	d.Attempt = attempt
	err := r.host.Deliver(ctx, d)
	switch {
	case plugins.Answered(err):
		return nil
	case errors.Is(err, context.DeadlineExceeded) && r.host.Status().State == plugins.StateRunning:
		return fmt.Errorf("no ack that names the delivery %q and the attempt %d came within %s", d.ID, attempt, timeout)
	}
	return err
}

func (r *run) many(ctx context.Context) error {
	const n = 1000
	before := r.count(plugins.EventUnknownAck)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = r.answers(ctx, sample(fmt.Sprintf("many-%d", i), 100), 1) })
	}
	wg.Wait()
	failed := 0
	var first error
	for _, err := range errs {
		if err != nil {
			failed++
			first = err
		}
	}
	switch strange := r.count(plugins.EventUnknownAck) - before; {
	case failed > 0:
		return fmt.Errorf("%d of %d got no answer: %w; is a credit given with each ack?", failed, n, first)
	case strange > 0:
		return fmt.Errorf("%d acks named a delivery and attempt that the plugin did not have", strange)
	}
	return nil
}

func (r *run) alive(context.Context) error {
	if s := r.host.Status(); s.State != plugins.StateRunning {
		return fmt.Errorf("it is %s: %w", s.State, s.Reason)
	}
	if n := r.count(plugins.EventStarted); n != 1 {
		return fmt.Errorf("it had to be started %d times", n)
	}
	return nil
}

func (r *run) ends(context.Context) error {
	if err := r.host.Close(); err != nil {
		return err
	}
	if r.count(plugins.EventKilled) > 0 {
		return errors.New("it had to be killed: end when the standard input ends, or at /plugin.GRPCController/Shutdown")
	}
	return nil
}

// refuses starts the plugin with a key that nobody can know.
func refuses(ctx context.Context, p Plugin) error {
	var config map[string]any
	if len(p.Config) > 0 {
		if err := json.Unmarshal(p.Config, &config); err != nil {
			return err
		}
	}
	if config == nil {
		config = map[string]any{}
	}
	config["a_key_that_hubrelay_made_up"] = true
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	r, err := newRun(p, text)
	if err != nil {
		return err
	}
	defer func() { _ = r.host.Close() }()
	err = r.answers(ctx, sample("1", 100), 1)
	switch {
	case err == nil:
		return errors.New("it starts with the key a_key_that_hubrelay_made_up: refuse what you do not know with INVALID_ARGUMENT, so that typing errors are found")
	case !strings.Contains(err.Error(), "refuses its configuration"):
		return fmt.Errorf("it fails, but does not answer INVALID_ARGUMENT: %w", err)
	}
	return nil
}
