package filewatch

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A pipe without a writer would block the reader and all deliveries.
func TestValue_BecomesPipe(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(name, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	now := time.Now()
	parse := func(text []byte) (string, error) { return string(text), nil }
	f, err := Open(name, parse, slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		now = now.Add(checkInterval)
		if got := f.Current(); got != "one" || strings.Count(log.String(), "does not name a regular file") != 1 {
			t.Errorf("Current() = %q, want \"one\" and one log message; log:\n%s", got, log.String())
		}
	}
}

// A file that was missing or unreadable is reloaded when it is readable again, even if its time and size are unchanged.
func TestValue_ReplacedWithSameTimeAndSize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name, then := filepath.Join(dir, "secret"), time.Now().Add(-time.Hour)
	writeFile := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Chtimes(name, then, then)); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(name, "one")
	var log bytes.Buffer
	now := time.Now()
	parse := func(text []byte) (string, error) { return string(text), nil }
	f, err := Open(name, parse, slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name     string
		do       func() error
		want     string
		messages int // error messages logged so far
	}{
		{"new file with the same time and size", func() error {
			writeFile(name+".new", "two")
			return os.Rename(name+".new", name)
		}, "two", 0},
		{"missing", func() error { return os.Rename(name, name+".away") }, "two", 1},
		{"restored", func() error { return os.Rename(name+".away", name) }, "two", 1},
		{"directory", func() error { return errors.Join(os.Remove(name), os.Mkdir(name, 0o700)) }, "two", 2},
		{"symbolic link", func() error {
			writeFile(filepath.Join(dir, "three"), "333")
			return errors.Join(os.Remove(name), os.Symlink("three", name))
		}, "333", 2},
		{"changed symbolic link", func() error {
			writeFile(filepath.Join(dir, "four"), "444")
			return errors.Join(os.Symlink("four", name+".new"), os.Rename(name+".new", name))
		}, "444", 2},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			now = now.Add(checkInterval)
			if got := f.Current(); got != step.want {
				t.Errorf("%s: Current() = %q, want %q", step.name, got, step.want)
			}
		}
		if n := strings.Count(log.String(), "file reload failed"); n != step.messages {
			t.Errorf("%s: got %d error messages, want %d; log:\n%s", step.name, n, step.messages, log.String())
		}
	}
}

func TestValue(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "secret")
	parse := func(text []byte) (string, error) {
		if len(text) == 0 {
			return "", errors.New("is empty")
		}
		return string(text), nil
	}
	now := time.Now()
	write := func(text string, age time.Duration) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	clock := func() time.Time { return now }
	logger := slog.New(slog.NewTextHandler(&log, nil))
	_, err := Open(name, parse, logger, clock)
	if err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("Open of a missing file: got %v", err)
	}
	write("one", time.Hour)
	f, err := Open(name, parse, logger, clock)
	if err != nil {
		t.Fatal(err)
	}
	write("two", time.Minute)
	if got := f.Current(); got != "one" {
		t.Errorf("within a second: got %q, want \"one\"", got)
	}
	now = now.Add(checkInterval)
	if got := f.Current(); got != "two" {
		t.Errorf("after the change: got %q, want \"two\"", got)
	}
	// If the clock is set back by a day, the file must not stay unchecked for a day.
	now = now.Add(-24 * time.Hour)
	write("three", 0)
	if got := f.Current(); got != "three" {
		t.Errorf("after the clock was set back: got %q, want \"three\"", got)
	}
	write("two", time.Second)
	now = now.Add(checkInterval)
	if got := f.Current(); got != "two" {
		t.Errorf("after another change: got %q, want \"two\"", got)
	}
	write("", 0)
	for range 3 {
		now = now.Add(checkInterval)
		if got := f.Current(); got != "two" {
			t.Errorf("after the file became empty: got %q, want \"two\"", got)
		}
	}
	if n := strings.Count(log.String(), "file reload failed"); n != 1 || strings.Contains(log.String(), "two") {
		t.Errorf("got %d error messages, want 1 without the content; log:\n%s", n, log.String())
	}
}
