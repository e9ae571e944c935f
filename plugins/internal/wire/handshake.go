package wire

import "math"

// What both sides of the handshake agree on.
const (
	// CookieName is the environment variable by which a program knows that it runs as a plugin; its value is the kind.
	CookieName = "HUBRELAY_PLUGIN"
	// KindSink is the kind of sink plugins, KindDriver the kind of drivers that move instances.
	KindSink   = "sink"
	KindDriver = "driver"
	// Version is the version of the protocol that this code speaks.
	Version = 1
	// MaxMessage is the longest message that either side takes, in bytes.
	MaxMessage = 64 << 20
	// Window is the maximum number of unread bytes on a stream.
	Window = 1 << 20
	// MaxCredits bounds how many deliveries a plugin may have at once.
	MaxCredits = math.MaxUint16
)

// The members of a line on a plugin's standard error that is a log record: a JSON object that has LogMessage. Its level
// is one of slog's names; every other member is an attribute.
const (
	LogMessage = "@message"
	LogLevel   = "level"
	LogTime    = "time"
)
