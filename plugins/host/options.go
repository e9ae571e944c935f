package host

import (
	"encoding/json"
	"errors"
	"log/slog"
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
	// Env is the complete environment of the plugin as NAME=value, apart from go-plugin's variables. The daemon's
	// environment is not inherited.
	Env []string
	// SHA256 is the expected hash of the program as hexadecimal digits. Empty disables the check.
	SHA256 string
	// Files must hash to these, by name; so a script can be pinned, whose program is its interpreter.
	Files map[string]string
	// Config is the configuration of the plugin, a JSON object. Empty means {}.
	Config json.RawMessage
	// PlainSocket is for plugins that cannot do TLS: the socket, in a folder only we can enter, is then all protection.
	PlainSocket bool
	// StartupTimeout bounds the time from the start until the plugin is ready.
	StartupTimeout time.Duration
	// HangTimeout is the time after the end of an attempt within which the plugin must answer any attempt. Otherwise it
	// is killed. For a driver it is the time within which a migration must stop.
	HangTimeout time.Duration
	// MemoryLimit limits the memory that the process may allocate, in bytes, if the system supports it. Zero means no
	// limit. It also applies to each process that the plugin starts.
	MemoryLimit int64
	// MaxCrashes is the maximum number of crashes in a short time. Half of them expire every [crashHalfLife].
	MaxCrashes int

	// Log and Observer may be nil. Observer receives events for metrics. It may be called concurrently and must not
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
	EventExited     Event = "exited"      // it ended by itself
	EventHung       Event = "hung"        // it was killed because it did not answer
	EventKilled     Event = "killed"      // it did not end when requested
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
