package sdk

import (
	"io"
	"log/slog"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
)

// newLogHandler writes records in the format that the daemon parses. It writes all levels, and the daemon filters.
func newLogHandler(w io.Writer) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.MessageKey {
				a.Key = wire.LogMessage
			}
			return a
		},
	})
}
