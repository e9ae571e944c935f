package adminapi

import "sort"

// Page is a part of a list, and the whole body of its response.
type Page[T any] struct {
	Data []T `json:"data"`
	// Next is the value of after for the next page. It is empty on the last page.
	Next string `json:"next"`
}

// WholeBody is implemented by responses that are not nested in an [Envelope].
type WholeBody interface {
	// Body returns the body of the HTTP response.
	Body() any
}

// Body returns the page itself, with an empty list instead of null.
func (p Page[T]) Body() any {
	if p.Data == nil {
		p.Data = []T{}
	}
	return p
}

// PageRequest selects a page of a list.
type PageRequest struct {
	// After is the value of next in the previous page. Empty means the first page.
	After string `json:"after,omitempty"`
	// Limit is the maximum number of entries. 0 means the default.
	Limit int `json:"limit,omitempty"`
}

// maxPage is the default and the maximum number of entries of a page of [SelectPage].
const maxPage = 1000

// SelectPage returns the selected page of a list that is sorted by name, in the order of compare. Entries with the same name
// are on the same page.
func SelectPage[T any](list []T, r PageRequest, nameOf func(T) string, compare func(a, b string) int) Page[T] {
	if r.After != "" {
		list = list[sort.Search(len(list), func(i int) bool { return compare(nameOf(list[i]), r.After) > 0 }):]
	}
	end := min(r.Limit, maxPage)
	if end <= 0 {
		end = maxPage
	}
	for end < len(list) && nameOf(list[end]) == nameOf(list[end-1]) {
		end++
	}
	if end >= len(list) {
		return Page[T]{Data: list}
	}
	return Page[T]{Data: list[:end], Next: nameOf(list[end-1])}
}
