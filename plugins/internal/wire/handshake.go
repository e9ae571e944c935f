package wire

import "math"

// The constants of both sides of the handshake.
const (
	// CookieName is the environment variable that tells a program to run as a plugin. Its value is the kind.
	CookieName = "HUBRELAY_PLUGIN"
	// KindSink is the kind of sinks, KindDriver the kind of migration drivers.
	KindSink   = "sink"
	KindDriver = "driver"
	// Version is the version of the protocol.
	Version = 1
	// MaxMessage is the maximum size of a message in bytes, for both sides.
	MaxMessage = 64 << 20
	// Window is the maximum number of unread bytes on a stream.
	Window = 1 << 20
	// MaxCredits is the maximum number of deliveries that a plugin may have at once.
	MaxCredits = math.MaxUint16
)

// The members of a line on a plugin's standard error that is a log record: a JSON object that has LogMessage. Its level
// is one of slog's names; every other member is an attribute.
const (
	LogMessage = "@message"
	LogLevel   = "level"
	LogTime    = "time"
)
