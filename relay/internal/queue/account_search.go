package queue

import (
	"context"
	"slices"
)

const (
	// searchPage is the number of entries of a page that an [AccountSearch] reads. Most often the first one is enough.
	searchPage = 50
	// maxSearchedPages is the maximum number of pages of a queue that one search reads.
	maxSearchedPages = 400
)

// AccountSearch searches the queues of a sink for entries of accounts that are not excluded. It must not be used concurrently.
type AccountSearch struct {
	store    *Store
	queues   []string // keys, one per partition
	current  int      // index of the queue that the next search begins with
	next     []string // where each queue continues; all entries before it are of excluded accounts
	excluded []string // accounts of the last search
}

// NewAccountSearch returns a search of the queues of a sink.
func (s *Store) NewAccountSearch(sink string) *AccountSearch {
	a := &AccountSearch{store: s, queues: Keys(s.keys, sink)}
	a.resetPositions()
	return a
}

func (a *AccountSearch) resetPositions() {
	a.next = slices.Repeat([]string{"-"}, len(a.queues))
}

// HasOthers reports whether it finds an entry of an account that is not excluded. It reads up to 20,000 entries of each queue.
// The next search continues there, also after an error, unless an account is no longer excluded.
func (a *AccountSearch) HasOthers(ctx context.Context, excluded []string) (bool, error) {
	if slices.ContainsFunc(a.excluded, func(account string) bool { return !slices.Contains(excluded, account) }) {
		a.resetPositions()
	}
	a.excluded = excluded
	for range a.queues {
		found, err := a.searchQueue(ctx, a.current)
		if found || err != nil {
			return found, err
		}
		a.current = (a.current + 1) % len(a.queues)
	}
	return false, nil
}

func (a *AccountSearch) searchQueue(ctx context.Context, i int) (found bool, err error) {
	for range maxSearchedPages {
		counts := make(map[string]int64)
		next, err := a.store.countAccountsFrom(ctx, a.queues[i], a.next[i], searchPage, counts)
		if err != nil {
			return false, err
		}
		for _, account := range a.excluded {
			delete(counts, account)
		}
		if len(counts) > 0 {
			return true, nil
		}
		if next == "" {
			a.next[i] = "-"
			return false, nil
		}
		a.next[i] = next
	}
	return false, nil
}
