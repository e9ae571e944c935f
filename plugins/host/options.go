package host

import (
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"
)

// What [Options] leave out.
const (
	DefaultStartupTimeout = 10 * time.Second
	DefaultMaxCrashes     = 10
	DefaultHangTimeout    = 10 * time.Second
	DefaultHealthInterval = 5 * time.Second
	DefaultHealthTimeout  = 3 * time.Second
	DefaultBackoff        = 100 * time.Millisecond
	DefaultMaxBackoff     = 30 * time.Second
)

// RelayVariable is the variable in which a driver finds the ID of its relay.
const RelayVariable = "HUBRELAY_RELAY_ID"

// Options describe one plugin.
type Options struct {
	// Name is the sink's name, or a driver's for the log.
	Name string
	// Command is the program and its arguments. A program without a slash is looked up in the daemon's PATH.
	Command []string
	// Dir is the working directory; the daemon's where empty.
	Dir string
	// Env is the plugin's whole environment, NAME=value, but for what go-plugin needs. Nothing of the daemon's is added.
	Env []string
	// SHA256 is what the program must hash to, as hexadecimal digits; not checked where empty.
	SHA256 string
	// Files must hash to these, by name; so a script can be pinned, whose program is its interpreter.
	Files map[string]string
	// Config is what the plugin is configured with, a JSON object; empty is {}.
	Config json.RawMessage
	// PlainSocket is for plugins that cannot do TLS: the socket, in a folder only we can enter, is then all protection.
	PlainSocket bool
	// StartupTimeout bounds the time from the start until the plugin is ready.
	StartupTimeout time.Duration
	// HangTimeout is how long after its end an attempt may go without an answer, while no other is answered either,
	// before the plugin is killed; of a driver, how long a migration may go on that was told to stop.
	HangTimeout time.Duration
	// MemoryLimit bounds what the process may allocate, in bytes, where the system can; zero for no limit. So it does for
	// each process that the plugin starts.
	MemoryLimit int64
	// MaxCrashes is how many crashes in a short time are too many; they are forgotten by half in [crashHalfLife].
	MaxCrashes int

	// Log and Observe may be nil. Observe is told what happens, for metrics; it may be called concurrently and must not
	// block.
	Log     *slog.Logger
	Observe func(Event)

	// For tests: what is zero is as above.
	HealthInterval, HealthTimeout time.Duration
	Backoff, MaxBackoff           time.Duration
	SocketRoot                    string // where socket folders are made
}

// Event is something that happens to a plugin, as metrics name it.
type Event string

// The events of a plugin.
const (
	EventStarted    Event = "started"
	EventNotStarted Event = "not_started" // a start failed
	EventExited     Event = "exited"      // it ended without being asked
	EventHung       Event = "hung"        // it was killed because it did not answer
	EventKilled     Event = "killed"      // it was asked to end and did not
	EventGaveUp     Event = "gave_up"     // it crashed too often
	EventUnknownAck Event = "unknown_ack" // it acknowledged what it did not have
	EventLateAck    Event = "late_ack"    // it acknowledged what is no longer waited for
	EventOutputCut  Event = "output_cut"  // a line of its output was left out or cut
)

func (o *Options) setDefaults() error {
	if o.Name == "" || len(o.Command) == 0 || o.Command[0] == "" {
		return errors.New("a plugin needs a name and a command")
	}
	for _, d := range []struct {
		value *time.Duration
		is    time.Duration
	}{
		{&o.StartupTimeout, DefaultStartupTimeout},
		{&o.HangTimeout, DefaultHangTimeout},
		{&o.HealthInterval, DefaultHealthInterval},
		{&o.HealthTimeout, DefaultHealthTimeout},
		{&o.Backoff, DefaultBackoff},
		{&o.MaxBackoff, DefaultMaxBackoff},
	} {
		if *d.value <= 0 {
			*d.value = d.is
		}
	}
	if o.MaxCrashes <= 0 {
		o.MaxCrashes = DefaultMaxCrashes
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observe == nil {
		o.Observe = func(Event) {}
	}
	if len(o.Config) == 0 {
		o.Config = json.RawMessage("{}")
	}
	return nil
}

// jitter spreads d over half to one and a half of it.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }
