package host

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/plugins/internal/wire"
)

func newTestOutput(log *bytes.Buffer, cut *int) *pluginOutput {
	o := newOutput(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})), redact.New("hunter2-secret"), func(Event) { *cut++ })
	o.now = func() time.Time { return time.Unix(1_800_000_000, 0) }
	return o
}

// The environment of a plugin may contain secrets, which a plugin prints by mistake.
func TestPluginOutput_Secrets(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var cut int
	o := newTestOutput(&log, &cut)
	for _, line := range []string{"TOKEN=hunter2-secret", `{"` + wire.LogMessage + `":"x","token":"hunter2-secret"}`} {
		o.logLine([]byte(line), "stderr", false)
	}
	if text := log.String() + o.takeLastLine(); strings.Contains(text, "hunter2") || strings.Count(text, "(redacted)") != 3 {
		t.Errorf("got %s", text)
	}
	options := Options{Env: []string{"TOKEN=hunter2-secret", "LEVEL=debug", "HOME=/home/relay", RelayVariable + "=0123456789"}}
	if got := options.envSecrets().Text("hunter2-secret debug /home/relay 0123456789"); got != "(redacted) debug /home/relay 0123456789" {
		t.Errorf("got %q", got)
	}
}

func TestPluginOutput_Lines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3*maxLine)
	for name, c := range map[string]struct{ in, want string }{
		"plain": {
			"one\n\n two \r\nthree",
			"level=INFO msg=\"plugin wrote a line\" stream=stderr line=one truncated=false\nlevel=INFO msg=\"" +
				"plugin wrote a line\" stream=stderr line=two truncated=false\nlevel=INFO msg=\"plugin wrote a line\" " +
				"stream=stderr line=three truncated=false\n",
		},
		"record": {`{"time":"2026-01-01T00:00:00Z","level":"ERROR","@message":"oh","b":[1],"a":"x","msg":"y"}` +
			"\n", "level=ERROR msg=oh a=x b=[1] plugin_msg=y\n"},
		"debug":    {`{"level":"DEBUG","@message":"oh"}` + "\n", ""},
		"no level": {`{"@message":"oh"}` + "\n", "level=INFO msg=oh\n"},
		"no record": {
			`{"@message":7}` + "\n",
			"level=INFO msg=\"plugin wrote a line\" stream=stderr line=\"{\\\"@message\\\":7}\" truncated=false\n",
		},
		"broken": {
			"a\xffb\n",
			"level=INFO msg=\"plugin wrote a line\" stream=stderr line=\"a�b\" truncated=false\n",
		},
		"long": {
			long + "\nshort\n",
			"level=INFO msg=\"plugin wrote a line\" stream=stderr line=" + long[:maxLine] +
				" truncated=true\nlevel=INFO msg=\"plugin wrote a line\" stream=stderr line=short truncated=false\n",
		},
		"nothing yet": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			var cut int
			newTestOutput(&log, &cut).copyLines(iotest.OneByteReader(strings.NewReader(c.in)), "stderr")
			if log.String() != c.want {
				t.Errorf("got %swant %s", log.String(), c.want)
			}
			if (cut == 1) != (name == "long") {
				t.Errorf("%d lines were cut", cut)
			}
		})
	}
}

func TestPluginOutput_LimitsLines(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var cut int
	o := newTestOutput(&log, &cut)
	w := o.newLineWriter("stdout")
	for i := range 3 * linesAtOnce {
		fmt.Fprintln(w, "line", i)
	}
	if n := strings.Count(log.String(), "\n"); n != linesAtOnce || cut != 2*linesAtOnce {
		t.Errorf("%d lines, %d left out", n, cut)
	}
	log.Reset()
	o.now = func() time.Time { return time.Unix(1_800_000_001, 0) }
	fmt.Fprintln(w, "later")
	if !strings.Contains(log.String(), fmt.Sprintf("suppressed_lines=%d", 2*linesAtOnce)) {
		t.Error(log.String())
	}
	log.Reset()
	o.now = func() time.Time { return time.Unix(1_800_000_002, 0) }
	for range linesPerSecond {
		fmt.Fprintln(w, strings.Repeat("x", maxLine))
	}
	if n, want := strings.Count(log.String(), "\n"), 2*linesPerSecond/(1+maxLine/countedBytes); n != want {
		t.Errorf("long lines: got %d, want %d", n, want)
	}
}

func TestPluginOutput_TakeLastLine(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var cut int
	o := newTestOutput(&log, &cut)
	w := o.newLineWriter("stdout")
	fmt.Fprint(w, "one\ntwo\n")
	if got := o.takeLastLine(); got != "two" {
		t.Errorf("got %q", got)
	}
	fmt.Fprint(w, "one\npanic: three\ngoroutine 7\n")
	if got := o.takeLastLine(); got != "panic: three" {
		t.Errorf("got %q", got)
	}
	if got := o.takeLastLine(); got != "" {
		t.Errorf("got %q again", got)
	}
	const failure = `{"@message":"no database","level":"ERROR"}`
	fmt.Fprintln(w, `{"@message":"handled","level":"INFO"}`)
	if got := o.takeLastLine(); got != "" {
		t.Errorf("got %q, which was logged while all was well", got)
	}
	fmt.Fprintf(w, "%s\n%s\n", failure, `{"@message":"handled","level":"INFO"}`)
	if got := o.takeLastLine(); got != failure {
		t.Errorf("got %q", got)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"@message":"oh","level":"WARN","time":"2026-01-01T00:00:00Z","a":{"b":[1,null]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, ok := parseLogRecord(text)
		if ok {
			if err := slog.NewJSONHandler(&bytes.Buffer{}, nil).Handle(t.Context(), r); err != nil {
				t.Error(err)
			}
		}
	})
}
