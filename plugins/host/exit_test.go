package host

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// dying returns a session whose process ends after some time with a reason.
func dying(after time.Duration) *pluginSession {
	o := &Options{Name: "dying", Log: slog.New(slog.DiscardHandler), Observe: func(Event) {}}
	s := &pluginSession{o: o, process: &pluginProcess{exited: make(chan struct{})}, output: newOutput(o.Log, o.envSecrets(), o.Observe)}
	go func() {
		time.Sleep(after)
		s.output.rememberLine([]byte("no database"))
		s.process.mu.Lock()
		s.process.exitText = "with status 3"
		s.process.mu.Unlock()
		close(s.process.exited)
	}()
	return s
}

// A start whose connection has ended is a crash, though the process is seen to end most of a second later.
func TestPluginSession_StartErrorWaitsForExit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		err := dying(exitTimeout-1).startError(t.Context(), errors.New("connection refused"))
		var ended *sessionError
		if !errors.As(err, &ended) || ended.event != EventExited ||
			err.Error() != "the plugin exited with status 3 before it was ready: no database" {
			t.Errorf("%T: %v", err, err)
		}
	})
}

// Once the exit status of a process is known, it is the reason of the broken stream, also for late callers.
func TestPluginSession_LinkErrorPrefersExit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := dying(2 * exitTimeout)
		s.process.exitText = "by signal 9 (killed)" // exited is closed after this
		if err := s.linkError(errors.New("the plugin broke the stream of deliveries")); !strings.HasPrefix(err.Error(),
			"the plugin exited by signal 9 (killed)") {
			t.Error(err)
		}
		<-s.process.exited
	})
}
