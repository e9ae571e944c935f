package term

import (
	"io"
	"log/slog"

	"github.com/lmittmann/tint"
)

// NewLogHandler returns a handler that writes one line per record for people: time, level, message and attributes.
// Programs should parse slog's JSON. Colors depend on w and env, see [NewPalette].
func NewLogHandler(w io.Writer, level slog.Leveler, env []string) slog.Handler {
	return tint.NewTextHandler(w, &tint.Options{
		Level:      level,
		TimeFormat: "15:04:05.000",
		NoColor:    !NewPalette(w, env).on,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.MessageKey {
				a.Value = slog.StringValue(Sanitize(a.Value.String()))
			}
			return a
		},
	})
}
