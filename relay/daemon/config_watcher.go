package daemon

import (
	"log/slog"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

const (
	// minRejectedRetry is the minimum delay before a rejected configuration is tried again. The error may be in
	// another file that it names.
	minRejectedRetry = 2 * time.Second
	// maxRetryShare limits the share of time spent on such attempts to one twentieth.
	maxRetryShare = 20
	// missingFileGrace is the time that a file may be missing before this is logged. Editors and deployments may
	// replace a file in two steps.
	missingFileGrace = 5 * time.Second
)

// configWatcher decides when to reload a file and which errors to log. It may not be used concurrently.
type configWatcher struct {
	watch      *config.FileWatcher
	log        *slog.Logger
	reload     func() error
	onRejected func(error) // logs the error of an attempt
	onFailing  func()      // records that the latest configuration is not applied

	lastError     string    // last logged error that is not fixed, or empty
	retryAt       time.Time // earliest time of the next automatic attempt
	missingSince  time.Time // zero while the file exists
	missingLogged bool      // whether the missing file was logged
}

// reloadNow reloads the file immediately and logs every error.
func (f *configWatcher) reloadNow() {
	f.watch.MarkReported()
	if err := f.watch.Missing(); err != nil {
		f.onFailing()
		f.logMissing(err)
		return
	}
	f.tryReload(true)
}

// checkFile reloads the file if it has changed, or if it was rejected and may have become valid without a change.
func (f *configWatcher) checkFile() {
	changed := f.watch.Changed()
	if err := f.watch.Missing(); err != nil {
		f.onMissing(err)
		return
	}
	f.missingSince, f.missingLogged = time.Time{}, false
	switch {
	case changed:
		f.tryReload(true)
	case f.lastError != "" && f.watch.IsStable() && !time.Now().Before(f.retryAt):
		f.tryReload(false)
	}
}

// tryReload reloads the file. It logs an error if always is true or if the error differs from the last one.
func (f *configWatcher) tryReload(always bool) {
	start := time.Now()
	err := f.reload()
	f.retryAt = time.Now().Add(max(minRejectedRetry, maxRetryShare*time.Since(start)))
	if err == nil {
		f.lastError = ""
		return
	}
	f.onFailing()
	if text := err.Error(); always || text != f.lastError {
		f.lastError = text
		f.onRejected(err)
	}
}

func (f *configWatcher) onMissing(err error) {
	now := time.Now()
	if f.missingSince.IsZero() {
		f.missingSince = now
	}
	if now.Sub(f.missingSince) < missingFileGrace {
		return
	}
	f.onFailing()
	if !f.missingLogged {
		f.logMissing(err)
	}
}

func (f *configWatcher) logMissing(err error) {
	f.missingLogged, f.lastError = true, err.Error()
	f.log.Warn("file is not readable, the previous content stays in use", "error", err)
}
