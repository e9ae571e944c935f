package daemon

import (
	"log/slog"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

const (
	// minRejectedRetry is the least pause before a configuration that was refused is tried again: what is wrong may be mended in
	// another file that it names.
	minRejectedRetry = 2 * time.Second
	// maxRetryShare bounds the time that such attempts take: a twentieth.
	maxRetryShare = 20
	// missingFileGrace is how long the file may be away before somebody is told: an editor or a deployment may replace it in two steps.
	missingFileGrace = 5 * time.Second
)

// configWatcher decides when the configuration is read again, and what is told about it. It may not be used concurrently.
type configWatcher struct {
	watch      *config.FileWatcher
	log        *slog.Logger
	reload     func() error
	onRejected func(error) // tells of an attempt's error
	onFailing  func()      // notes that the latest configuration does not run

	lastError     string    // what was told last and is not mended; empty where all is well
	retryAt       time.Time // no attempt of its own accord before this
	missingSince  time.Time // since when the file is away; zero while it is there
	missingLogged bool      // that it is away
}

// reloadNow reads the file at once, and tells in any case what is wrong.
func (f *configWatcher) reloadNow() {
	f.watch.MarkReported()
	if err := f.watch.Missing(); err != nil {
		f.onFailing()
		f.logMissing(err)
		return
	}
	f.tryReload(true)
}

// checkFile reads the file where it has changed, or where it was refused and may have become good without a change.
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

// tryReload tells what is wrong where it is asked to, or where that is something else than before.
func (f *configWatcher) tryReload(tell bool) {
	began := time.Now()
	err := f.reload()
	f.retryAt = time.Now().Add(max(minRejectedRetry, maxRetryShare*time.Since(began)))
	if err == nil {
		f.lastError = ""
		return
	}
	f.onFailing()
	if text := err.Error(); tell || text != f.lastError {
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
	f.log.Warn("file not readable, the previous content stays in use until it is back", "error", err)
}
