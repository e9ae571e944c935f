package storage

// FairShare counts the bytes that names, such as accounts, keep in Redis, and limits them. While all together stay below a maximum,
// each may have half of it. Otherwise, those with more than a minimum get equal parts of half of it. So a few cannot use up the maximum
// for others, and many exceed it only slowly: 10 names have at most twice, 200 names four times the maximum, plus their minimum. It must
// not be used concurrently.
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

// Limit returns the bytes that a name may have if it is to get some more. maxBytes is the maximum of all names; 0 means no limit, and so
// does a negative result.
func (s *FairShare) Limit(name string, more, maxBytes int64) int64 {
	if maxBytes <= 0 {
		return -1
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
