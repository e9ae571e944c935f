package app

import (
	"log/slog"
	"time"

	"github.com/hubrelay/hubrelay/relay/config"
)

const (
	// refusedEvery is the least pause before a configuration that was refused is tried again: what is wrong may be mended in
	// another file that it names.
	refusedEvery = 2 * time.Second
	// refusedShare bounds the time that such attempts take: a twentieth.
	refusedShare = 20
	// goneAfter is how long the file may be away before somebody is told: an editor or a deployment may replace it in two steps.
	goneAfter = 5 * time.Second
)

// follower decides when the configuration is read again, and what is told about it. It may not be used concurrently.
type follower struct {
	watch   *config.Watch
	log     *slog.Logger
	attempt func() error
	refused func(error) // tells of an attempt's error
	failing func()      // notes that the latest configuration does not run

	wrong string    // what was told last and is not mended; empty where all is well
	again time.Time // no attempt of its own accord before this
	gone  time.Time // since when the file is away; zero while it is there
	told  bool      // that it is away
}

// asked reads the file at once, and tells in any case what is wrong.
func (f *follower) asked() {
	f.watch.Skip()
	if err := f.watch.Missing(); err != nil {
		f.failing()
		f.tellAway(err)
		return
	}
	f.try(true)
}

// look reads the file where it has changed, or where it was refused and may have become good without a change.
func (f *follower) look() {
	changed := f.watch.Changed()
	if err := f.watch.Missing(); err != nil {
		f.away(err)
		return
	}
	f.gone, f.told = time.Time{}, false
	switch {
	case changed:
		f.try(true)
	case f.wrong != "" && f.watch.Settled() && !time.Now().Before(f.again):
		f.try(false)
	}
}

// try tells what is wrong where it is asked to, or where that is something else than before.
func (f *follower) try(tell bool) {
	began := time.Now()
	err := f.attempt()
	f.again = time.Now().Add(max(refusedEvery, refusedShare*time.Since(began)))
	if err == nil {
		f.wrong = ""
		return
	}
	f.failing()
	if text := err.Error(); tell || text != f.wrong {
		f.wrong = text
		f.refused(err)
	}
}

func (f *follower) away(err error) {
	now := time.Now()
	if f.gone.IsZero() {
		f.gone = now
	}
	if now.Sub(f.gone) < goneAfter {
		return
	}
	f.failing()
	if !f.told {
		f.tellAway(err)
	}
}

func (f *follower) tellAway(err error) {
	f.told, f.wrong = true, err.Error()
	f.log.Warn("file not readable, the previous content stays in use until it is back", "error", err)
}
