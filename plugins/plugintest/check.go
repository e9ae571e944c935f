package plugintest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/plugins/host"
)

// Plugin is the program to check.
type Plugin struct {
	// Kind is host.KindSink or host.KindDriver. If it is empty, the program is started an additional time to detect it.
	Kind string
	// Command is the program and its arguments.
	Command []string
	// Env is its environment, NAME=value.
	Env []string
	// Config is the configuration, a JSON object. Empty means {}.
	Config json.RawMessage
	// PlainSocket is for plugins that do not support TLS.
	PlainSocket bool
	// StartupTimeout limits the start, and Timeout each response. The default is 10 s.
	StartupTimeout, Timeout time.Duration
	// Log receives the output of the plugin. It may be nil.
	Log *slog.Logger
}

// Result is the outcome of one check.
type Result struct {
	// Name describes the check.
	Name string
	// Err is the reason of a failure, or nil.
	Err error
	// Advice is true if a failure violates no rule, but is a trap for operators.
	Advice bool
}

// checkRun is a plugin that is being checked.
type checkRun struct {
	p    Plugin
	host pluginHost

	mu     sync.Mutex
	events map[host.Event]int
}

// pluginHost has the methods that the hosts of all kinds share.
type pluginHost interface {
	Status() host.Status
	Close() error
}

// check is one requirement of a plugin.
type check struct {
	name string
	do   func(context.Context) error
}

// Check runs all checks and calls report after each. It stops after a failed check that the others depend on. It
// reports whether all rules are followed.
func Check(ctx context.Context, p Plugin, report func(Result)) bool {
	p.setDefaults()
	good := true
	say := func(name string, advice bool, err error) bool {
		report(Result{Name: name, Err: err, Advice: advice})
		good = good && (err == nil || advice)
		return err == nil
	}
	if err := p.findKind(ctx); err != nil {
		say("the command can be used", false, err)
		return false
	}
	open := openSink
	if p.Kind == host.KindDriver {
		open = openDriver
	}
	k, err := open(p)
	if err != nil {
		say("the command can be used", false, err)
		return false
	}
	defer func() { _ = k.host.Close() }()
	if !say(k.first.name, false, host.UnavailableCause(k.first.do(ctx))) {
		return false
	}
	for _, c := range append(k.checks,
		check{"still runs, as the same process", k.isRunning},
		check{"ends within 3 s after a shutdown request", k.stopsInTime},
		check{
			"ends when the relay is killed (end of its standard input)",
			func(ctx context.Context) error { return dieWithoutDaemon(ctx, p) },
		},
	) {
		say(c.name, false, c.do(ctx))
	}
	say("rejects an unknown key in its configuration", true, rejectsUnknownKey(ctx, p, open))
	p.checkOptional(ctx, say)
	return good
}

// checked is a plugin with the requirements of its kind.
type checked struct {
	*checkRun
	first  check // the others require it
	checks []check
}

func (p *Plugin) setDefaults() {
	for _, d := range []*time.Duration{&p.StartupTimeout, &p.Timeout} {
		if *d <= 0 {
			*d = 10 * time.Second
		}
	}
}

// KindOf detects the kind of the plugin. A plugin that is not a driver is treated as a sink.
func KindOf(ctx context.Context, p Plugin) (string, error) {
	p.setDefaults()
	err := p.findKind(ctx)
	return p.Kind, err
}

func (p *Plugin) findKind(ctx context.Context) (err error) {
	switch p.Kind {
	case host.KindSink, host.KindDriver:
		return nil
	case "":
		o := newRun(*p).hostOptions(p.Config)
		o.Log = nil // it is started again, and logs then
		p.Kind, err = host.KindOf(ctx, o)
		return err
	}
	return fmt.Errorf("unknown kind of plugin %q: choose %s or %s", p.Kind, host.KindSink, host.KindDriver)
}

func newRun(p Plugin) *checkRun { return &checkRun{p: p, events: map[host.Event]int{}} }

func (r *checkRun) hostOptions(config json.RawMessage) host.Options {
	return host.Options{
		Name: "check", Command: r.p.Command, Env: r.p.Env, Config: config, PlainSocket: r.p.PlainSocket,
		StartupTimeout: r.p.StartupTimeout, MaxCrashes: 1, Log: r.p.Log,
		Observe: func(e host.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events[e]++
		},
	}
}

func (r *checkRun) countEvents(e host.Event) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events[e]
}

// answerTimeout returns the maximum time of a response.
func (r *checkRun) answerTimeout() time.Duration {
	if r.host.Status().State != host.StateRunning {
		return r.p.Timeout + r.p.StartupTimeout
	}
	return r.p.Timeout
}

func (r *checkRun) isRunning(context.Context) error {
	if s := r.host.Status(); s.State != host.StateRunning {
		return fmt.Errorf("it is %s: %w", s.State, s.Reason)
	}
	if n := r.countEvents(host.EventStarted); n != 1 {
		return fmt.Errorf("it had to be started %d times", n)
	}
	return nil
}

func (r *checkRun) stopsInTime(context.Context) error {
	if err := r.host.Close(); err != nil {
		return err
	}
	if r.countEvents(host.EventKilled) > 0 {
		return errors.New(
			"it had to be killed: end when the standard input ends, or at /plugin.GRPCController/Shutdown",
		)
	}
	return nil
}
