package host

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	// maxLine is the maximum length of a line of output in bytes. Longer lines are truncated.
	maxLine = 8 << 10
	// linesPerSecond and linesAtOnce limit the rate of logged lines of one plugin. The others are counted. A long line counts
	// as one line for each countedBytes.
	linesPerSecond = 50
	linesAtOnce    = 500
	countedBytes   = 512
	// maxLastLine is the maximum length of the line that explains an exit, in bytes.
	maxLastLine = 200
)

// pluginOutput writes what a plugin prints into the daemon's log. It may be used concurrently.
type pluginOutput struct {
	log     *slog.Logger
	secrets redact.Secrets // which lines must not contain
	observe func(Event)
	now     func() time.Time

	mu       sync.Mutex
	limiter  *rate.Limiter
	dropped  int
	lastLine string // the most useful line to explain an exit
	isPanic  bool   // last line reports a panic
}

func newOutput(log *slog.Logger, secrets redact.Secrets, observe func(Event)) *pluginOutput {
	limiter := rate.NewLimiter(linesPerSecond, linesAtOnce)
	return &pluginOutput{log: log, secrets: secrets, observe: observe, now: time.Now, limiter: limiter}
}

// copyLines logs the lines of a stream until r ends.
func (o *pluginOutput) copyLines(r io.Reader, stream string) {
	w := o.newLineWriter(stream)
	_, _ = io.Copy(w, r)
	w.close()
}

// lineWriter logs the lines of one stream. A line may come in several blocks; go-plugin forwards the output of Go plugins in blocks
// of 1 KiB. Its methods may be called concurrently.
type lineWriter struct {
	output *pluginOutput
	stream string

	mu        sync.Mutex
	line      []byte // the beginning of a line, at most maxLine
	skipsRest bool   // the beginning of the line was logged
}

func (o *pluginOutput) newLineWriter(stream string) *lineWriter {
	return &lineWriter{output: o, stream: stream}
}

// Write implements [io.Writer]. It returns no errors.
func (w *lineWriter) Write(block []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for text := range bytes.Lines(block) {
		rest, isComplete := bytes.CutSuffix(text, []byte{'\n'})
		if !w.skipsRest {
			n := min(len(rest), maxLine-len(w.line))
			w.line = append(w.line, rest[:n]...)
			w.skipsRest = n < len(rest)
			if w.skipsRest || isComplete {
				w.logLine()
			}
		}
		w.skipsRest = w.skipsRest && !isComplete
	}
	return len(block), nil
}

// close logs the last line if it has no end.
func (w *lineWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logLine()
}

func (w *lineWriter) logLine() {
	if text := bytes.TrimSpace(w.line); len(text) > 0 {
		w.output.logLine(text, w.stream, w.skipsRest)
	}
	w.line = w.line[:0]
}

func (o *pluginOutput) logLine(text []byte, stream string, cut bool) {
	dropped, ok := o.allowLine(len(text))
	if cut || !ok {
		o.observe(EventOutputCut)
	}
	if !ok {
		o.rememberLine([]byte(o.secrets.Prefix(string(text), maxLastLine)))
		return
	}
	if cut {
		text = []byte(o.secrets.Truncated(string(text)))
	} else {
		text = []byte(o.secrets.Text(string(text)))
	}
	log := o.log
	if dropped > 0 {
		log = log.With("suppressed_lines", dropped)
	}
	r, structured := parseLogRecord(text)
	if !structured || r.Level >= slog.LevelError { // normal log lines do not explain the exit
		o.rememberLine(text)
	}
	if structured && !cut {
		if ctx := context.Background(); log.Enabled(ctx, r.Level) {
			_ = log.Handler().Handle(ctx, r)
		}
		return
	}
	shown := strings.ToValidUTF8(string(text), "�")
	log.Info("plugin wrote a line", "stream", stream, "line", shown, "truncated", cut)
}

func (o *pluginOutput) allowLine(length int) (dropped int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.limiter.AllowN(o.now(), 1+length/countedBytes) {
		o.dropped++
		return 0, false
	}
	dropped, o.dropped = o.dropped, 0
	return dropped, true
}

// rememberLine keeps the line that most likely explains the exit: the first one with a panic, otherwise the last one.
func (o *pluginOutput) rememberLine(text []byte) {
	loud := false
	for _, begin := range []string{"panic: ", "fatal error: ", "runtime: out of memory", "MemoryError"} {
		loud = loud || bytes.HasPrefix(text, []byte(begin))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.isPanic {
		return
	}
	o.isPanic = loud
	o.lastLine = strings.ToValidUTF8(relay.Truncate(string(text), maxLastLine), "�")
}

// takeLastLine returns the remembered line and clears it.
func (o *pluginOutput) takeLastLine() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	last := o.lastLine
	o.lastLine, o.isPanic = "", false
	return last
}

// parseLogRecord reads a line that plugins/sdk has written.
func parseLogRecord(text []byte) (slog.Record, bool) {
	if !bytes.HasPrefix(text, []byte("{")) || !bytes.Contains(text, []byte(wire.LogMessage)) {
		return slog.Record{}, false
	}
	var members map[string]any
	if json.Unmarshal(text, &members) != nil {
		return slog.Record{}, false
	}
	message, ok := members[wire.LogMessage].(string)
	if !ok {
		return slog.Record{}, false
	}
	var level slog.Level
	name, _ := members[wire.LogLevel].(string)
	if level.UnmarshalText([]byte(name)) != nil {
		level = slog.LevelInfo
	}
	at, _ := members[wire.LogTime].(string)
	when, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		when = time.Now()
	}
	r := slog.NewRecord(when, level, message, 0)
	for _, key := range slices.Sorted(maps.Keys(members)) {
		switch key {
		case wire.LogMessage, wire.LogLevel, wire.LogTime:
		case slog.MessageKey, slog.SourceKey, "sink", "plugin", "component": // ours
			r.AddAttrs(slog.Any("plugin_"+key, members[key]))
		default:
			r.AddAttrs(slog.Any(key, members[key]))
		}
	}
	return r, true
}
