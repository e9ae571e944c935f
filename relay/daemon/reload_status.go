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

// summary describes how the running configuration differs from the file, or returns "". It contains no names and values.
func (l *reloadStatus) summary() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text, _ := l.describe()
	return text
}

// warning is summary with details for operators.
func (l *reloadStatus) warning() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text, detail := l.describe()
	if detail == "" {
		return text
	}
	return text + ": " + detail
}

// describe returns the summary and its details. The caller holds mu.
func (l *reloadStatus) describe() (text, detail string) {
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
