package daemon

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
)

// reloadStatus tracks whether the latest file is applied. If an older file is applied late, it must not hide that
// a newer one was rejected. It may be used concurrently.
type reloadStatus struct {
	setMetric func(bool)

	mu              sync.Mutex
	isRejected      bool
	since           time.Time // time of the first rejection since a file was accepted
	problem         string    // why the latest file is rejected, if known
	applyProblem    string    // why the accepted file is not applied yet
	restartRequired []string  // settings whose values in the file are not in use until a restart
}

func (l *reloadStatus) markRejected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isRejected {
		l.since, l.problem = time.Now(), ""
	}
	l.isRejected = true
	l.setMetric(false)
}

// setProblem sets why the latest file is rejected.
func (l *reloadStatus) setProblem(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problem = text
}

func (l *reloadStatus) markAccepted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isRejected = false
}

// markNotApplied reports that an accepted file could not be applied yet.
func (l *reloadStatus) markNotApplied(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.applyProblem = err.Error()
	l.setMetric(false)
}

func (l *reloadStatus) markApplied(restartRequired []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.applyProblem, l.restartRequired = "", restartRequired
	if !l.isRejected {
		l.setMetric(true)
	}
}

// publicWarning is a warning if the running configuration differs from the file, or "". It contains no names and values,
// because everyone who reaches the health listener can read it.
func (l *reloadStatus) publicWarning() string {
	text, _ := l.describeDifference()
	return text
}

// operatorWarning is publicWarning with the problems and settings.
func (l *reloadStatus) operatorWarning() string {
	text, detail := l.describeDifference()
	if detail == "" {
		return text
	}
	return text + ": " + detail
}

func (l *reloadStatus) describeDifference() (text, detail string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.isRejected:
		return "the configuration file was rejected at " + l.since.UTC().Format(time.RFC3339) +
			", the previous configuration stays active", l.problem
	case l.applyProblem != "":
		return "the configuration file is not applied yet", l.applyProblem
	case len(l.restartRequired) > 0:
		return "some settings of the configuration file require a restart", strings.Join(l.restartRequired, ", ")
	}
	return "", ""
}

// describeProblems returns the problems of a configuration on one line.
func describeProblems(err error) string {
	var problems yamldoc.Problems
	if !errors.As(err, &problems) {
		return err.Error()
	}
	list := make([]string, len(problems))
	for i, p := range problems {
		list[i] = p.String()
	}
	return strings.Join(list, "; ")
}
