package adminapi

// ChangeResult is the result of a change of several deliveries, dead letters or quarantined entries.
type ChangeResult struct {
	// Changed is the number of items that were changed, which includes dropped ones.
	Changed int `json:"changed"`
	// Unchanged are the others.
	Unchanged []Unchanged `json:"unchanged"`
}

// NewChangeResult returns a result without unchanged items. Its JSON has an empty list of them.
func NewChangeResult(changed int) ChangeResult {
	return ChangeResult{Changed: changed, Unchanged: []Unchanged{}}
}

// The reasons of [Unchanged].
const (
	UnchangedRunning    = "running"    // a node has it, and attempts it now, or when the sink is resumed
	UnchangedOrdering   = "ordering"   // it waits for an earlier delivery with its ordering key
	UnchangedWaiting    = "waiting"    // it was not attempted yet; a node attempts it as soon as possible
	UnchangedDigest     = "digest"     // it is part of an open digest
	UnchangedDead       = "dead"       // it is a dead letter
	UnchangedUnreadable = "unreadable" // it cannot be decoded, so it cannot be replayed
	UnchangedUnknown    = "unknown"    // Redis was too slow to find it; a repetition may find it

	// UnchangedMissing means that no such item exists. A delivery may have been delivered or dropped, or be part of a batch or
	// digest, which has its own ID.
	UnchangedMissing = "missing"
)

// Unchanged is an item that was not changed.
type Unchanged struct {
	ID string `json:"id"`
	// Reason is running, ordering, waiting, digest, dead, unreadable, missing or unknown. Dead letters and quarantined entries
	// have missing and unreadable only.
	Reason string `json:"reason"`
}

// Add adds the numbers and items of a part.
func (r *ChangeResult) Add(part ChangeResult) {
	r.Changed += part.Changed
	r.Unchanged = append(r.Unchanged, part.Unchanged...)
}
