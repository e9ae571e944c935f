package storage

import "math"

// FairShare counts the bytes that names, such as accounts, keep in Redis, and limits them. While all together have less than a maximum,
// each may have half of it. Otherwise, half of it is divided equally among the names with more than a minimum, which each name may
// always have. So 10 names have at most twice the maximum, and 200 names four times, plus the minimum of each. It must not be used
// concurrently.
type FairShare struct {
	min    int64
	byName map[string]int64
	total  int64
	large  int64 // number of names with more than min
}

// NewFairShare returns a FairShare in which each name may always have minBytes.
func NewFairShare(minBytes int64) *FairShare {
	return &FairShare{min: minBytes, byName: make(map[string]int64)}
}

// Bytes returns the bytes of a name.
func (s *FairShare) Bytes(name string) int64 { return s.byName[name] }

// Add adds bytes to a name. They may be negative.
func (s *FairShare) Add(name string, bytes int64) {
	before := s.byName[name]
	after := before + bytes
	s.total += bytes
	if before > s.min {
		s.large--
	}
	if after > s.min {
		s.large++
	}
	if after > 0 {
		s.byName[name] = after
	} else {
		delete(s.byName, name)
	}
}

// Limit returns how many bytes a name may have in all if it is to get more bytes. maxBytes is the maximum of all names together; 0
// means no limit.
func (s *FairShare) Limit(name string, more, maxBytes int64) int64 {
	if maxBytes <= 0 {
		return math.MaxInt64
	}
	limit := maxBytes / 2
	if s.total+more > maxBytes {
		large := s.large
		if s.byName[name] <= s.min {
			large++
		}
		limit /= large
	}
	return max(limit, s.min)
}
