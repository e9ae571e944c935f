package relay

// editDistance counts the insertions, deletions, replacements and swaps of neighbours that turn a into b (optimal
// string alignment).
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

// patternDistance counts the edits after which pattern would match name. A `*` takes any run of name for nothing.
func patternDistance(pattern, name []byte) int {
	prev := make([]int, len(name)+1)
	row := make([]int, len(name)+1)
	for j := range prev {
		prev[j] = j
	}
	for _, c := range pattern {
		if c == '*' {
			copy(row, prev)
			for j := 1; j <= len(name); j++ {
				row[j] = min(row[j], row[j-1])
			}
		} else {
			row[0] = prev[0] + 1
			for j := 1; j <= len(name); j++ {
				cost := 1
				if c == name[j-1] {
					cost = 0
				}
				row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			}
		}
		prev, row = row, prev
	}
	return prev[len(name)]
}
