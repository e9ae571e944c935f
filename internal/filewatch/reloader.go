package filewatch

import (
	"context"
	"log/slog"
	"time"
)

const (
	// pollInterval is the time between checks. A change is loaded after two equal checks, so within a second.
	pollInterval = 400 * time.Millisecond
	// minRejectedRetry is the minimum delay before a rejected file is tried again. The error may be in another file
	// that it names.
	minRejectedRetry = 2 * time.Second
	// maxRetryShare limits the share of time spent on such attempts to one twentieth, until the delay is
	// maxRejectedRetry.
	maxRetryShare    = 20
	maxRejectedRetry = 30 * time.Second
	// missingFileGrace is the time that a file may be missing before this is logged. Editors and deployments may
	// replace a file in two steps.
	missingFileGrace = 5 * time.Second
)

// Reloader loads a file again after it has changed, and while it is rejected. All fields are required, except Requested
// and OnFailing. It must not be used concurrently.
type Reloader struct {
	Watch *Watcher
	Log   *slog.Logger
	// Reload loads the file. After an error the previous content stays in use.
	Reload func() error
	// OnRejected logs an error of Reload. It is called once for each error text.
	OnRejected func(error)
	// OnFailing records that the latest content is not in use.
	OnFailing func()
	// Requested triggers a reload without a change, which logs every error.
	Requested <-chan struct{}

	lastError     string    // last logged error that is not fixed, or empty
	retryAt       time.Time // earliest time of the next automatic attempt
	missingSince  time.Time // zero while the file exists
	missingLogged bool      // whether the missing file was logged
}

// Run checks the file until ctx ends. It returns nil.
func (f *Reloader) Run(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.Requested:
			f.reloadNow()
		case <-tick.C:
			f.checkFile()
		}
	}
}

// reloadNow reloads the file immediately and logs every error.
func (f *Reloader) reloadNow() {
	f.Watch.MarkReported()
	if err := f.Watch.Missing(); err != nil {
		f.markFailing()
		f.logMissing(err)
		return
	}
	f.tryReload(true)
}

// checkFile reloads the file if it has changed, or if it was rejected and may have become valid without a change.
func (f *Reloader) checkFile() {
	changed := f.Watch.Changed()
	if err := f.Watch.Missing(); err != nil {
		f.onMissing(err)
		return
	}
	f.missingSince, f.missingLogged = time.Time{}, false
	switch {
	case changed:
		f.tryReload(true)
	case f.lastError != "" && f.Watch.IsStable() && !time.Now().Before(f.retryAt):
		f.tryReload(false)
	}
}

// tryReload reloads the file. It logs an error if always is true or if the error differs from the last one.
func (f *Reloader) tryReload(always bool) {
	start := time.Now()
	err := f.Reload()
	f.retryAt = time.Now().Add(min(maxRejectedRetry, max(minRejectedRetry, maxRetryShare*time.Since(start))))
	if err == nil {
		f.lastError = ""
		return
	}
	f.markFailing()
	if text := err.Error(); always || text != f.lastError {
		f.lastError = text
		f.OnRejected(err)
	}
}

func (f *Reloader) onMissing(err error) {
	now := time.Now()
	if f.missingSince.IsZero() {
		f.missingSince = now
	}
	if now.Sub(f.missingSince) < missingFileGrace {
		return
	}
	f.markFailing()
	if !f.missingLogged {
		f.logMissing(err)
	}
}

func (f *Reloader) markFailing() {
	if f.OnFailing != nil {
		f.OnFailing()
	}
}

func (f *Reloader) logMissing(err error) {
	f.missingLogged, f.lastError = true, err.Error()
	f.Log.Warn("file is not readable, the previous content stays in use", "error", err)
}
