package plugins

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	// maxLine bounds a line of a plugin's output, in bytes; the rest of a longer one is left out.
	maxLine = 8 << 10
	// linesPerSecond and linesAtOnce bound how many lines of one plugin are logged; the others are counted.
	linesPerSecond = 50
	linesAtOnce    = 500
)

// output writes what a plugin prints into the daemon's log. It may be used concurrently.
type output struct {
	log     *slog.Logger
	observe func(Event)
	now     func() time.Time

	mu      sync.Mutex
	tokens  float64
	at      time.Time
	dropped int
	last    string // the line that tells most about an end
	loud    bool   // last is one that says so
}

func newOutput(log *slog.Logger, observe func(Event)) *output {
	return &output{log: log, observe: observe, now: time.Now, tokens: linesAtOnce}
}

// follow logs lines until r ends. The size of r's buffer bounds a line.
func (o *output) follow(r *bufio.Reader, stream string) {
	for {
		line, err := r.ReadSlice('\n')
		cut := errors.Is(err, bufio.ErrBufferFull)
		if text := bytes.TrimSpace(line); len(text) > 0 {
			o.line(text, stream, cut)
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
		if err != nil {
			return
		}
	}
}

// Write takes the lines of what go-plugin sends of a Go plugin's standard output.
func (o *output) Write(text []byte) (int, error) {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			o.line(line[:min(len(line), maxLine)], "stdout", len(line) > maxLine)
		}
	}
	return len(text), nil
}

func (o *output) line(text []byte, stream string, cut bool) {
	dropped, ok := o.allow()
	if cut || !ok {
		o.observe(EventOutputCut)
	}
	if !ok {
		o.remember(text)
		return
	}
	log := o.log
	if dropped > 0 {
		log = log.With("lines_left_out", dropped)
	}
	r, structured := record(text)
	if !structured || r.Level >= slog.LevelError { // what it logs while all is well says nothing of its end
		o.remember(text)
	}
	if structured && !cut {
		if ctx := context.Background(); log.Enabled(ctx, r.Level) {
			_ = log.Handler().Handle(ctx, r)
		}
		return
	}
	shown := strings.ToValidUTF8(string(text), "�")
	log.Info("the plugin wrote a line", "stream", stream, "line", shown, "cut", cut)
}

func (o *output) allow() (dropped int, ok bool) {
	now := o.now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.at.IsZero() {
		o.tokens = min(linesAtOnce, o.tokens+now.Sub(o.at).Seconds()*linesPerSecond)
	}
	o.at = now
	if o.tokens < 1 {
		o.dropped++
		return 0, false
	}
	o.tokens--
	dropped, o.dropped = o.dropped, 0
	return dropped, true
}

// remember keeps the line that is most likely to say why the process ended: the first that names a panic, else the last.
func (o *output) remember(text []byte) {
	loud := false
	for _, begin := range []string{"panic: ", "fatal error: ", "runtime: out of memory", "MemoryError"} {
		loud = loud || bytes.HasPrefix(text, []byte(begin))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.loud {
		return
	}
	o.loud = loud
	o.last = strings.ToValidUTF8(relay.Clip(string(text), 200), "�")
}

// lastWords returns what remember kept since it was asked before.
func (o *output) lastWords() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	last := o.last
	o.last, o.loud = "", false
	return last
}

// record reads a line that plugins/sdk has written.
func record(text []byte) (slog.Record, bool) {
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
		case slog.MessageKey, slog.SourceKey, "sink", "plugin", "room": // ours
			r.AddAttrs(slog.Any("plugin_"+key, members[key]))
		default:
			r.AddAttrs(slog.Any(key, members[key]))
		}
	}
	return r, true
}
