package relay

import "slices"

// Filter selects notifications. An empty list selects everything, so the zero value passes all but the relay's own
// notifications. It may be used concurrently as long as nobody changes it.
type Filter struct {
	Topics Patterns
	// Hubs and Accounts are compared whole; there are no patterns in them.
	Hubs     []string
	Accounts []string
}

// Match reports whether n passes every part of the filter.
func (f Filter) Match(n Notification) bool {
	return (len(f.Hubs) == 0 || slices.Contains(f.Hubs, n.Hub)) &&
		(len(f.Accounts) == 0 || slices.Contains(f.Accounts, n.Account)) &&
		f.Topics.Match(n.Topic)
}
