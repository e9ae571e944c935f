package term

import (
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	progressCells = 30
	// A bar changes at most ten times a second. Lines are printed once a second to keep logs short.
	progressBarInterval  = 100 * time.Millisecond
	progressLineInterval = time.Second
)

// Progress shows the progress of a long command: a bar on a terminal, otherwise lines. It shows nothing for short
// work. It is not safe for concurrent use.
type Progress struct {
	out   io.Writer
	bar   bool
	verb  string // such as "replayed"
	total int
	now   func() time.Time

	startedAt, shown time.Time
	drawn            bool
}

// NewProgress returns the progress of total items. The verb is in the past tense, such as "replayed".
func NewProgress(out io.Writer, verb string, total int) *Progress {
	p := &Progress{out: out, bar: IsTerminal(out), verb: verb, total: total, now: time.Now}
	p.startedAt = p.now()
	p.shown = p.startedAt
	return p
}

// Update sets the number of finished items.
func (p *Progress) Update(done int) {
	now := p.now()
	interval := progressLineInterval
	if p.bar {
		interval = progressBarInterval
	}
	if now.Sub(p.shown) < interval {
		return
	}
	p.shown = now
	p.total = max(p.total, done) // total is an estimate that can grow
	if !p.bar {
		_, _ = fmt.Fprintf(p.out, "%s %d of %d\n", p.verb, done, p.total)
		return
	}
	p.drawn = true
	share := float64(done) / float64(max(p.total, 1))
	rate := float64(done) / max(now.Sub(p.startedAt).Seconds(), 0.001)
	_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s %s %3.0f%%  %d of %d  %.0f/s", p.verb,
		ProgressBar(share), share*100, done, p.total, rate)
}

// Clear removes the bar before other output.
func (p *Progress) Clear() {
	if p.drawn {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
}

// ProgressBar returns a bar for a share from 0 to 1.
func ProgressBar(share float64) string {
	full := max(0, min(int(share*progressCells), progressCells))
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", progressCells-full) + "]"
}
