// Package suggest finds the name that a person probably meant.
package suggest

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// maxName is the maximum length of a word in bytes. The time to compare two words grows with the product of their lengths.
const maxName = 64

// ClosestName returns the name that most likely was meant by word, or "" if none is close. Case is ignored. At most a third of the
// word may differ, or the word is the first part of a name: "account" means "account_id". Words longer than 64 bytes have no
// suggestion.
func ClosestName(word string, names []string) string {
	return Closest(word, names, func(a, b []byte) int {
		if rest, ok := bytes.CutPrefix(b, a); ok && len(a) > 0 && bytes.HasPrefix(rest, []byte("_")) {
			return 1
		}
		// The distance is at least the difference in length, so most names need no comparison.
		if difference := max(len(a), len(b)) - min(len(a), len(b)); difference > max(1, len(a)/3) {
			return difference
		}
		return editDistance(a, b)
	})
}

// ClosestNames returns up to limit names, sorted by their edit distance to word.
func ClosestNames(word string, names []string, limit int) []string {
	folded := []byte(strings.ToLower(word[:min(len(word), maxName)]))
	sorted := slices.Clone(names)
	slices.SortStableFunc(sorted, func(a, b string) int {
		return cmp.Compare(editDistance(folded, []byte(a)), editDistance(folded, []byte(b)))
	})
	return sorted[:min(limit, len(sorted))]
}

// Closest returns the name with the smallest distance to word. It returns "" if none is close.
func Closest(word string, names []string, distance func(a, b []byte) int) string {
	if len(word) > maxName {
		return ""
	}
	folded := []byte(strings.ToLower(strings.TrimSpace(word)))
	best, bestDistance := "", max(1, len(folded)/3)+1
	for _, name := range names {
		if d := distance(folded, []byte(strings.ToLower(name))); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	return best
}

// editDistance returns the number of insertions, deletions, replacements and swaps of adjacent bytes that turn a
// into b (optimal string alignment).
func editDistance(a, b []byte) int {
	before := make([]int, len(b)+1)
	prev := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d := min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, before[j-2]+1)
			}
			row[j] = d
		}
		before, prev, row = prev, row, before
	}
	return prev[len(b)]
}
