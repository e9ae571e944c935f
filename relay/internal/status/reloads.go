package status

import (
	"strings"
	"sync"
	"time"
)

// Reloads tracks whether the latest configuration file is applied. If an older file is applied late, it must not hide that a
// newer one was rejected. It may be used concurrently.
type Reloads struct {
	// SetMetric reports whether the latest file is applied. It is set before the first use.
	SetMetric func(applied bool)

	mu              sync.Mutex
	isRejected      bool
	since           time.Time // time of the first rejection since a file was accepted
	problem         string    // why the latest file is rejected, if known
	applyProblem    string    // why the accepted file is not applied yet
	restartRequired []string  // settings whose values in the file are not in use until a restart
}

// MarkRejected reports that the latest file was rejected.
func (r *Reloads) MarkRejected() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isRejected {
		r.since, r.problem = time.Now(), ""
	}
	r.isRejected = true
	r.SetMetric(false)
}

// SetProblem sets why the latest file is rejected.
func (r *Reloads) SetProblem(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problem = text
}

// MarkAccepted reports that the latest file was accepted.
func (r *Reloads) MarkAccepted() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isRejected = false
}

// MarkNotApplied reports that an accepted file could not be applied yet.
func (r *Reloads) MarkNotApplied(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applyProblem = err.Error()
	r.SetMetric(false)
}

// MarkApplied reports that an accepted file is applied, except the named settings.
func (r *Reloads) MarkApplied(restartRequired []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applyProblem, r.restartRequired = "", restartRequired
	if !r.isRejected {
		r.SetMetric(true)
	}
}

// PublicWarning is a warning if the running configuration differs from the file, or "". It contains no names and values,
// because everyone who reaches the health listener can read it.
func (r *Reloads) PublicWarning() string {
	text, _ := r.describeDifference()
	return text
}

// OperatorWarning is [Reloads.PublicWarning] with the problems and settings.
func (r *Reloads) OperatorWarning() string {
	text, detail := r.describeDifference()
	if detail == "" {
		return text
	}
	return text + ": " + detail
}

func (r *Reloads) describeDifference() (text, detail string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.isRejected:
		return "the configuration file was rejected at " + r.since.UTC().Format(time.RFC3339) +
			", the previous configuration stays active", r.problem
	case r.applyProblem != "":
		return "the configuration file is not applied yet", r.applyProblem
	case len(r.restartRequired) > 0:
		return "some settings of the configuration file require a restart", strings.Join(r.restartRequired, ", ")
	}
	return "", ""
}
