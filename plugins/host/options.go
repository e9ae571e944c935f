package host

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/redact"
)

// The defaults of [Options].
const (
	DefaultStartupTimeout = 30 * time.Second
	DefaultMaxCrashes     = 10
	DefaultHangTimeout    = 10 * time.Second
	DefaultHealthInterval = 5 * time.Second
	DefaultHealthTimeout  = 3 * time.Second
	DefaultBackoff        = 100 * time.Millisecond
	DefaultMaxBackoff     = 30 * time.Second
	// DefaultElsewhereGrace is the time for which a plugin that does not start is not given up after it last worked on another node.
	// That node may be restarting.
	DefaultElsewhereGrace = 5 * time.Minute
)

// RelayVariable is the environment variable with the ID of the relay, for drivers.
const RelayVariable = "HUBRELAY_RELAY_ID"

// Options describe one plugin.
type Options struct {
	// Name is the name of the sink, or the name of a driver in the log.
	Name string
	// Command is the program and its arguments. A program without a slash is looked up in the PATH of the daemon.
	Command []string
	// Dir is the working directory. The default is the working directory of the daemon.
	Dir string
	// Env is the complete environment of the plugin as NAME=value, apart from go-plugin's variables. The daemon's
	// environment is not inherited.
	Env []string
	// SHA256 is the expected hash of the program as hexadecimal digits. Empty disables the check.
	SHA256 string
	// Files contains the expected hashes of other files by name, for example of a script that an interpreter runs.
	Files map[string]string
	// Config is the configuration of the plugin, a JSON object. Empty means {}.
	Config json.RawMessage
	// PlainSocket is for plugins that do not support TLS. Only the private directory of the socket protects it then.
	PlainSocket bool
	// StartupTimeout is the maximum time from the start until the plugin is ready.
	StartupTimeout time.Duration
	// HangTimeout is the time after the end of an attempt within which the plugin must respond to any attempt. Otherwise it
	// is killed, also if attempts without a response since then occupy half of it, or if it has acknowledged everything and grants no
	// credit for that time. For a driver it is the time within which a migration must stop.
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
	// WorksElsewhere reports whether the plugin works on another node. Then, and for five minutes longer, it is not given up if it does
	// not start on this one. An error means that this is not known. It may be nil.
	WorksElsewhere func(context.Context) (bool, error)

	reportConcurrency func(n int) // see [Host.ReportConcurrency]

	// Tests set the following fields. Zero values mean the constants.
	HealthInterval, HealthTimeout time.Duration
	Backoff, MaxBackoff           time.Duration
	ElsewhereGrace                time.Duration
	SocketRoot                    string // parent of the socket directories
}

// minSecretLength is the minimum length of a secret in Env in bytes. Shorter values are words, such as log levels.
const minSecretLength = 8

// envSecrets returns the values in Env that may be secrets: long ones that are no paths.
func (o *Options) envSecrets() (secrets redact.Secrets) {
	for _, entry := range o.Env {
		name, value, _ := strings.Cut(entry, "=")
		if len(value) >= minSecretLength && value[0] != '/' && name != RelayVariable {
			secrets = secrets.With(value)
		}
	}
	return secrets
}

// Event is an event of a plugin, for metrics.
type Event string

// The events of a plugin.
const (
	EventStarted    Event = "started"
	EventNotStarted Event = "not_started" // a start failed
	EventExited     Event = "exited"      // it ended by itself
	EventHung       Event = "hung"        // it was killed because it did not respond
	EventKilled     Event = "killed"      // it did not end when requested
	EventGaveUp     Event = "gave_up"     // it crashed too often
	EventUnknownAck Event = "unknown_ack" // it acknowledged an attempt that it did not have
	EventLateAck    Event = "late_ack"    // it acknowledged an abandoned attempt
	EventOutputCut  Event = "output_cut"  // a line of its output was omitted or truncated
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
		{&o.ElsewhereGrace, DefaultElsewhereGrace},
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
	if o.reportConcurrency == nil {
		o.reportConcurrency = func(int) {}
	}
	if len(o.Config) == 0 {
		o.Config = json.RawMessage("{}")
	}
	return nil
}
