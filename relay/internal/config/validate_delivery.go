package config

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// checkPacing checks the keys for rate, digest and ordering.
func (l *loader) checkPacing(path string, s *Sink) {
	checkRange(l, path+".burst", s.Burst, 0, 100_000)
	if s.Burst > 0 && !s.Rate.Limited() {
		l.Error(path+".burst", "has no effect without a rate", "set rate, or remove the key")
	}
	d := s.Digest
	if d.Wait != 0 {
		checkRange(l, path+".digest.wait", d.Wait, 100*time.Millisecond, 24*time.Hour)
	}
	checkRange(l, path+".digest.max", d.Max, 1, 1000)
	// A kind with DigestOverRate combines the notifications that exceed its rate, except if they are ordered.
	waits := l.kinds[s.Type].DigestOverRate && s.Rate.Limited()
	if d.Wait == 0 && (!waits || s.Ordering != "none") {
		problem, fix := "has no effect without wait", "set digest.wait, such as 10s"
		if waits {
			problem, fix = "has no effect with an ordering", "remove ordering or digest"
		}
		if d.Max != defaultSink().Digest.Max {
			l.Error(path+".digest.max", problem, fix)
		}
		if len(d.By) > 0 {
			l.Error(path+".digest.by", problem, fix)
		}
	}
	if d.Wait != 0 && s.Ordering != "none" {
		l.Error(path+".ordering", "conflicts with digest, which combines events", "remove ordering or digest")
	}
}

// checkBatch checks the batch keys of a sink with valid settings.
func (l *loader) checkBatch(path string, s *Sink) {
	b := s.Batch
	checkRange(l, path+".batch.max", b.Max, 1, 1000)
	if b.Wait == 0 {
		if b.Max != defaultSink().Batch.Max {
			l.Error(path+".batch.max", "has no effect without wait", "set batch.wait, such as 1s")
		}
		return
	}
	checkRange(l, path+".batch.wait", b.Wait, 10*time.Millisecond, 10*time.Minute)
	switch {
	case !l.kinds[s.Type].Batches:
		fix := "remove batch; these sink types support batches: " + strings.Join(l.batchSinkTypes(), ", ")
		if l.kinds[s.Type].DigestOverRate {
			fix = "use digest, which is made for people; these sink types support batches: " + strings.Join(
				l.batchSinkTypes(), ", ",
			)
		}
		l.Error(path+".batch", "is not supported by sinks of type "+s.Type, fix)
	case s.Digest.Wait != 0:
		l.Error(path+".batch", "conflicts with digest",
			"keep batch, which delivers everything, or digest, which counts what it omits")
	case s.Ordering != "none":
		l.Error(path+".batch", "conflicts with ordering "+s.Ordering+", because batches are delivered "+
			"concurrently and failed ones are retried later",
			"remove batch if the order per "+s.Ordering+" matters, otherwise remove ordering; each batch keeps "+
				"the order of the log")
	}
	if l.kinds[s.Type].Batches {
		env := relay.CheckEnv{Name: strings.TrimPrefix(path, "sinks."), Dir: l.dir, Batch: true}
		l.addErrors(path, s.Settings.Check(context.Background(), env).Errors)
	}
}

// batchSinkTypes returns the types of sinks that support batches.
func (l *loader) batchSinkTypes() []string {
	var types []string
	for name, kind := range l.kinds {
		if kind.Batches {
			types = append(types, name)
		}
	}
	slices.Sort(types)
	return types
}
