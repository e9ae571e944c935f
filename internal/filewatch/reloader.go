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
func (r *Reloader) Run(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.Requested:
			r.reloadNow()
		case <-tick.C:
			r.checkFile()
		}
	}
}

// reloadNow reloads the file immediately and logs every error.
func (r *Reloader) reloadNow() {
	r.Watch.MarkReported()
	if err := r.Watch.Missing(); err != nil {
		r.markFailing()
		r.logMissing(err)
		return
	}
	r.tryReload(true)
}

// checkFile reloads the file if it has changed, or if it was rejected and may have become valid without a change.
func (r *Reloader) checkFile() {
	changed := r.Watch.Changed()
	if err := r.Watch.Missing(); err != nil {
		r.onMissing(err)
		return
	}
	r.missingSince, r.missingLogged = time.Time{}, false
	switch {
	case changed:
		r.tryReload(true)
	case r.lastError != "" && r.Watch.IsStable() && !time.Now().Before(r.retryAt):
		r.tryReload(false)
	}
}

// tryReload reloads the file. It logs an error if always is true or if the error differs from the last one.
func (r *Reloader) tryReload(always bool) {
	start := time.Now()
	err := r.Reload()
	r.retryAt = time.Now().Add(min(maxRejectedRetry, max(minRejectedRetry, maxRetryShare*time.Since(start))))
	if err == nil {
		r.lastError = ""
		return
	}
	r.markFailing()
	if text := err.Error(); always || text != r.lastError {
		r.lastError = text
		r.OnRejected(err)
	}
}

func (r *Reloader) onMissing(err error) {
	now := time.Now()
	if r.missingSince.IsZero() {
		r.missingSince = now
	}
	if now.Sub(r.missingSince) < missingFileGrace {
		return
	}
	r.markFailing()
	if !r.missingLogged {
		r.logMissing(err)
	}
}

func (r *Reloader) markFailing() {
	if r.OnFailing != nil {
		r.OnFailing()
	}
}

func (r *Reloader) logMissing(err error) {
	r.missingLogged, r.lastError = true, err.Error()
	r.Log.Warn("file is not readable, the previous content stays in use", "error", err)
}
