package term

import (
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	progressCells = 30
	// A bar moves ten times a second at most; lines come once a second, so that a log stays readable.
	progressBarEvery  = 100 * time.Millisecond
	progressLineEvery = time.Second
)

// progress shows how far a long command is: a bar on a terminal, plain lines elsewhere. Work that is done at once shows
// nothing. It is not safe for concurrent use.
type progress struct {
	out   io.Writer
	bar   bool
	verb  string // such as "replayed"
	total int
	now   func() time.Time

	startedAt, shown time.Time
	drawn            bool
}

func NewProgress(out io.Writer, verb string, total int) *progress {
	p := &progress{out: out, bar: IsTerminal(out), verb: verb, total: total, now: time.Now}
	p.startedAt = p.now()
	p.shown = p.startedAt
	return p
}

// Update says that done of total are done.
func (p *progress) Update(done int) {
	now := p.now()
	every := progressLineEvery
	if p.bar {
		every = progressBarEvery
	}
	if now.Sub(p.shown) < every {
		return
	}
	p.shown = now
	p.total = max(p.total, done) // it is an estimate where there is more by the minute
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

// Clear leaves the terminal's line to what is printed next.
func (p *progress) Clear() {
	if p.drawn {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
}

// ProgressBar is a bar of progress from 0 to 1.
func ProgressBar(share float64) string {
	full := max(0, min(int(share*progressCells), progressCells))
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", progressCells-full) + "]"
}
