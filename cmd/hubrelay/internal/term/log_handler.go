package term

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
)

// logHandler writes log records for people: time, level, message, then the attributes. Machines get slog's own JSON
// or text handler.
type logHandler struct {
	mu    *sync.Mutex
	out   io.Writer
	level slog.Leveler
	paint Palette
	// prefix holds what WithAttrs and WithGroup have collected, ready to print.
	prefix string
	group  string
}

func NewLogHandler(out io.Writer, level slog.Leveler, paint Palette) *logHandler {
	return &logHandler{mu: new(sync.Mutex), out: out, level: level, paint: paint}
}

func (h *logHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	var b bytes.Buffer
	b.WriteString(h.paint.Dim(r.Time.Format("15:04:05.000")) + " " + h.levelName(r.Level) + " " + r.Message)
	b.WriteString(h.prefix)
	r.Attrs(func(a slog.Attr) bool {
		b.WriteString(h.attr(h.group, a))
		return true
	})
	b.WriteByte('\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.out.Write(b.Bytes())
	return err
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	for _, a := range attrs {
		c.prefix += h.attr(h.group, a)
	}
	return &c
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	c := *h
	if name != "" {
		c.group += name + "."
	}
	return &c
}

func (h *logHandler) levelName(l slog.Level) string {
	name := fmt.Sprintf("%-5s", l)
	switch {
	case l >= slog.LevelError:
		return h.paint.Red(name)
	case l >= slog.LevelWarn:
		return h.paint.Yellow(name)
	case l >= slog.LevelInfo:
		return h.paint.Green(name)
	default:
		return h.paint.Dim(name)
	}
}

func (h *logHandler) attr(group string, a slog.Attr) string {
	a.Value = a.Value.Resolve()
	if a.Value.Kind() == slog.KindGroup {
		var b bytes.Buffer
		for _, inner := range a.Value.Group() {
			b.WriteString(h.attr(group+a.Key+".", inner))
		}
		return b.String()
	}
	if a.Equal(slog.Attr{}) {
		return ""
	}
	value := Sanitize(a.Value.String())
	if bytes.ContainsAny([]byte(value), " \t\"") || value == "" {
		value = fmt.Sprintf("%q", value)
	}
	return " " + h.paint.Dim(group+a.Key+"=") + value
}
