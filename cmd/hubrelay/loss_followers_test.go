package main_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// numbers records the numbers that a follower received.
type numbers struct {
	losses *losses
	begun  map[string]int64 // last number in publication at the start, by hub; later ones must arrive
	heard  map[string][]int
}

func (b *numbers) begin(string) {
	b.begun = make(map[string]int64)
	for hub, n := range b.losses.begun {
		b.begun[hub] = n.Load()
	}
}

func (b *numbers) take(m message, _ string) error {
	hub, n, err := numberOf(m.Object.ID)
	if err == nil {
		b.heard[hub] = append(b.heard[hub], n)
	}
	return err
}

// lossFollower is a follower of numbers.
type lossFollower struct {
	*follower
	book *numbers
}

func newLossFollower(l *losses, kind int, hub string, random *rand.Rand) lossFollower {
	book, topics := &numbers{losses: l, heard: make(map[string][]int)}, ""
	if random.IntN(3) == 0 {
		topics = "job.*"
	}
	return lossFollower{newFollower(kind, l.way.Addr(), hub, topics, book, random), book}
}

// complete reports missing and superfluous numbers compared to the log.
func (f *lossFollower) complete(log map[string][]int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wrong != nil {
		return fmt.Errorf("%s: %w", f.name, f.wrong)
	}
	for hub, want := range log {
		if f.hub != "" && hub != f.hub {
			if len(f.book.heard[hub]) > 0 {
				return fmt.Errorf("%s received %s", f.name, hub)
			}
			continue
		}
		if f.topics != "" {
			want = slices.DeleteFunc(slices.Clone(want), func(n int) bool { return n%3 == 0 })
		}
		// From its first number on, which can have been in publication at the start.
		got := f.book.heard[hub]
		from, _ := slices.BinarySearch(want, int(f.book.begun[hub])+1)
		if len(got) > 0 {
			at, known := slices.BinarySearch(want, got[0])
			if !known || at > from {
				return fmt.Errorf("%s started when %d of %s was in publication, and received %d first", f.name,
					f.book.begun[hub], hub, got[0])
			}
			from = at
		}
		for i, n := range want[from:] {
			if i == len(got) || got[i] != n {
				return fmt.Errorf("%s received %d of %s of %s; instead of %d came %v after %v",
					f.name, len(got), fmt.Sprint(len(want)-from), hub, n, got[i:min(i+5, len(got))], got[max(0, i-3):i])
			}
		}
		if len(got) > len(want)-from {
			return fmt.Errorf("%s finally received %v of %s", f.name, got[len(want)-from:], hub)
		}
	}
	return nil
}

func (f *lossFollower) figures() (connections, heard, tooSlow int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.connections, total(f.book.heard), f.tooSlow
}
