package embeddedredis

import (
	"bufio"
	"log/slog"
	"strings"
	"testing"
)

func TestReadReply(t *testing.T) {
	for _, c := range []struct{ in, want, err string }{
		{"+PONG\r\n", "PONG", ""},
		{":7\r\n", "7", ""},
		{"$5\r\nhello\r\n", "hello", ""},
		{"$-1\r\n", "", ""},
		{"*2\r\n$3\r\ndir\r\n$4\r\n/tmp\r\n", "dir\n/tmp", ""},
		{"-LOADING Redis is loading\r\n", "LOADING Redis is loading", "LOADING Redis is loading"},
		{"$99999999999\r\n", "", "not a reply of redis"},
		{"HTTP/1.1 400 Bad Request\r\n", "", "not a reply of redis"},
		{"$5\r\nhel", "", "unexpected EOF"},
		{"\r\n", "", "empty reply"},
	} {
		got, err := readReply(bufio.NewReader(strings.NewReader(c.in)), 0)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("readReply(%q): got %q, %v, want %q, %q", c.in, got, err, c.want, c.err)
		}
	}
}

func FuzzReadReply(f *testing.F) {
	for _, seed := range []string{
		"+OK\r\n", "*1\r\n*1\r\n$1\r\na\r\n", "$0\r\n\r\n", "*-1\r\n", "-E\r\n", "*9\r\n:1\r\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		if got, err := readReply(bufio.NewReader(strings.NewReader(in)), 0); err == nil && len(got) > 2*len(in) {
			t.Errorf("decoded %d bytes from %d", len(got), len(in))
		}
	})
}

func TestParseLogLine(t *testing.T) {
	const prefix = "12:M 21 Nov 2026 02:00:00.000 "
	for _, c := range []struct {
		line, text string
		level      slog.Level
	}{
		{prefix + "* Ready to accept connections", "Ready to accept connections", slog.LevelDebug},
		{prefix + "# Error writing to the AOF file", "Error writing to the AOF file", slog.LevelWarn},
		{"12:C 21 Nov 2026 02:00:00.000 # oO0OoO0OoO0Oo starting", "oO0OoO0OoO0Oo starting", slog.LevelDebug},
		{prefix + "# WARNING: a # b", "WARNING: a # b", slog.LevelWarn},
		{prefix + "# WARNING Memory overcommit!", "WARNING Memory overcommit!", slog.LevelDebug},
		{prefix + "# User requested shutdown...", "User requested shutdown...", slog.LevelDebug},
		{"      _.-``__ ''-._", "", slog.LevelDebug},
		{"", "", slog.LevelDebug},
		{"*** FATAL CONFIG FILE ERROR ***", "*** FATAL CONFIG FILE ERROR ***", slog.LevelDebug},
	} {
		text, level := parseLogLine(c.line)
		if text != c.text || level != c.level {
			t.Errorf("parseLogLine(%q): got %q, %v, want %q, %v", c.line, text, level, c.text, c.level)
		}
	}
}
