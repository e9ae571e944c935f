package config

import (
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// checkPacing checks how deliveries are spread over time, and what is gathered or kept in order.
func (l *loader) checkPacing(path string, s *Sink) {
	checkRange(l, path+".burst", s.Burst, 0, 100_000)
	if s.Burst > 0 && !s.Rate.Limited() {
		l.Error(path+".burst", "says nothing without a rate", "give rate, or leave it out")
	}
	d := s.Digest
	if d.Wait != 0 {
		checkRange(l, path+".digest.wait", d.Wait, 100*time.Millisecond, 24*time.Hour)
	}
	checkRange(l, path+".digest.max", d.Max, 1, 1000)
	// A kind that gathers without a wait gathers what its rate makes wait, and where an order is kept, nothing.
	waits := l.kinds[s.Type].DigestWhenLimited && s.Rate.Limited()
	if d.Wait == 0 && (!waits || s.Ordering != "none") {
		problem, fix := "says nothing without wait", "give digest.wait, such as 10s"
		if waits {
			problem, fix = "says nothing beside an ordering, which gathers nothing", "leave out one of ordering and digest"
		}
		if d.Max != defaultSink().Digest.Max {
			l.Error(path+".digest.max", problem, fix)
		}
		if len(d.By) > 0 {
			l.Error(path+".digest.by", problem, fix)
		}
	}
	if d.Wait != 0 && s.Ordering != "none" {
		l.Error(path+".ordering", "cannot be kept beside a digest, which gathers", "leave out one of ordering and digest")
	}
}

// checkBatch checks what gathers notifications whole, of a sink whose own settings are valid.
func (l *loader) checkBatch(path string, s *Sink) {
	b := s.Batch
	checkRange(l, path+".batch.max", b.Max, 1, 1000)
	if b.Wait == 0 {
		if b.Max != defaultSink().Batch.Max {
			l.Error(path+".batch.max", "says nothing without wait", "give batch.wait, such as 1s")
		}
		return
	}
	checkRange(l, path+".batch.wait", b.Wait, 10*time.Millisecond, 10*time.Minute)
	switch {
	case !l.kinds[s.Type].SupportsBatches:
		fix := "leave batch out; sinks of these types take batches: " + strings.Join(l.batchSinkTypes(), ", ")
		if l.kinds[s.Type].DigestWhenLimited {
			fix = "use digest, which people can read; sinks of these types take batches: " + strings.Join(l.batchSinkTypes(), ", ")
		}
		l.Error(path+".batch", "is not for sinks of the type "+s.Type, fix)
	case s.Digest.Wait != 0:
		l.Error(path+".batch", "is given beside digest", "keep batch, which leaves nothing out, or digest, which counts what it leaves out")
	case s.Ordering != "none":
		l.Error(path+".batch", "cannot keep the ordering "+s.Ordering+", since batches are delivered side by side, and one that failed comes later",
			"leave batch out where what concerns one "+s.Ordering+" must come in order, and else ordering; within a batch notifications are in the order of the log")
	}
	if c, ok := s.Settings.(relay.BatchConfig); ok && l.kinds[s.Type].SupportsBatches {
		if err := c.CheckBatch(); err != nil {
			l.reportInvalid(path, err)
		}
	}
}

// batchSinkTypes are the types of sinks that take batches.
func (l *loader) batchSinkTypes() []string {
	var types []string
	for name, kind := range l.kinds {
		if kind.SupportsBatches {
			types = append(types, name)
		}
	}
	slices.Sort(types)
	return types
}
