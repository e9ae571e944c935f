package sdk

import (
	"io"
	"log/slog"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
)

// newLogHandler writes lines that the daemon knows as records. It writes all levels: what is shown is the daemon's choice.
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
