package filewatch

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A Reloader retries a rejected file, and waits before it logs a missing one.
func TestReloader_RejectedAndMissingFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a.yaml")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("one")
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		var problem error
		var takes time.Duration
		attempts, logged, failing := 0, 0, 0
		f := &Reloader{
			Watch: New(file), Log: slog.New(slog.NewTextHandler(&log, nil)),
			Reload:     func() error { attempts++; time.Sleep(takes); return problem },
			OnRejected: func(error) { logged++ }, OnFailing: func() { failing++ },
		}
		run := func(step string, span time.Duration, wantAttempts, wantLogged int) {
			t.Helper()
			attempts, logged = 0, 0
			for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(pollInterval) {
				f.checkFile()
			}
			if attempts != wantAttempts || logged != wantLogged {
				t.Errorf("%s: got %d attempts and %d log records, want %d and %d", step, attempts, logged, wantAttempts,
					wantLogged)
			}
		}
		run("valid", 20*time.Second, 0, 0)
		problem = errors.New("bearer_file is missing")
		put("other")
		run("rejected", 20*time.Second, 10, 1)
		problem = errors.New("bearer_file is empty")
		run("different error", 20*time.Second, 10, 1)
		takes = time.Second
		run("slow attempts", 42*time.Second, 2, 0)
		takes = 0
		f.reloadNow()
		put("half")
		f.checkFile()
		put("half writ")
		f.checkFile()
		if attempts != 3 || logged != 1 {
			t.Errorf("while the file is written: got %d attempts and %d log records, want 3 and 1", attempts, logged)
		}
		run("same error after a change", time.Second, 1, 1)
		problem = nil
		run("fixed without a change", 20*time.Second, 1, 0)
		if failing == 0 || log.Len() > 0 {
			t.Errorf("got %d failures and log %q, want failures and an empty log", failing, log.String())
		}
		failing = 0
		if err := os.Rename(file, file+".away"); err != nil {
			t.Fatal(err)
		}
		run("missing briefly", missingFileGrace-time.Second, 0, 0)
		if failing > 0 || log.Len() > 0 {
			t.Errorf("missing briefly: got %d failures and log %q, want none", failing, log.String())
		}
		run("missing", time.Minute, 0, 0)
		if n := strings.Count(log.String(), "not readable"); n != 1 || failing == 0 {
			t.Errorf("missing: got %d log records and %d failures, want 1 record and failures", n, failing)
		}
		log.Reset()
		f.reloadNow()
		run("reload requested while missing", time.Minute, 0, 0)
		if n := strings.Count(log.String(), "not readable"); n != 1 {
			t.Errorf("reload requested while missing: got %d log records, want 1", n)
		}
		if err := os.Rename(file+".away", file); err != nil {
			t.Fatal(err)
		}
		run("restored", 20*time.Second, 1, 0)
	})
}
