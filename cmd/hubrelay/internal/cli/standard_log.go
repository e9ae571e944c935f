package cli

import (
	stdlog "log" //nolint:depguard // it is redirected
	"log/slog"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/logsample"
	"github.com/hubrelay/hubrelay/relay"
)

// The standard logger may log so many lines per interval.
const (
	standardLogLines    = 10
	standardLogInterval = time.Minute
	maxStandardLogLine  = 300
)

// redirectStandardLog passes what libraries write to Go's standard logger to log, for debugging. net/http writes a line for
// each unknown frame of a destination, for example, so they are limited.
func redirectStandardLog(log *slog.Logger) {
	stdlog.SetFlags(0)
	stdlog.SetOutput(&standardLog{log: log, limiter: logsample.New(standardLogLines, standardLogInterval, nil)})
}

type standardLog struct {
	log     *slog.Logger
	limiter *logsample.Limiter
}

// Write implements io.Writer. It is called once per line.
func (s *standardLog) Write(line []byte) (int, error) {
	if suppressed, ok := s.limiter.Allow(); ok {
		text := strings.ToValidUTF8(strings.TrimSpace(string(line[:min(len(line), 2*maxStandardLogLine)])), "")
		s.log.Debug("a library has logged a line", "line", relay.Truncate(text, maxStandardLogLine), "suppressed_lines", suppressed)
	}
	return len(line), nil
}
