package redact

import (
	"slices"
	"sync"
)

// maxRecent is the number of secrets that a [Recent] keeps.
const maxRecent = 8

// Recent keeps the last secrets that were sent. After a change of a secret, a peer may repeat the former one, which may still be
// valid. The zero value has none. It may be used concurrently, and must not be copied.
type Recent struct {
	mu   sync.Mutex
	list []Secrets // the oldest first
	all  Secrets
}

// Add makes secrets the newest ones, and returns all that are kept. Call it before they are sent.
func (r *Recent) Add(s Secrets) Secrets {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(s.texts) == 0 {
		return r.all
	}
	isSame := func(known Secrets) bool { return slices.Equal(known.texts, s.texts) }
	if slices.ContainsFunc(r.list, isSame) {
		r.list = append(slices.DeleteFunc(r.list, isSame), s)
		return r.all
	}
	r.list = append(r.list[max(0, len(r.list)-maxRecent+1):], s)
	r.all = Secrets{}
	for _, known := range r.list {
		r.all = r.all.Join(known)
	}
	return r.all
}

// All returns the secrets that are kept.
func (r *Recent) All() Secrets {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}
