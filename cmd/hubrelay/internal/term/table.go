package term

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// TableWidth is the number of columns that a table may take.
const TableWidth = 100

// Column describes one column of a table.
type Column struct {
	Title string
	// MaxWidth is the greatest width; longer values are clipped. 0 is no bound, and for the last column what is left.
	MaxWidth int
	Right    bool
	// DropOrder is not zero for a column that may be left out where the table is too wide, the highest first.
	DropOrder int
	// Paint colours a cell and may be nil.
	Paint func(cell, padded string) string
	// MinWidth is what the last column gets where it needs it, before others are left out for it; 0 is [lastWidth].
	MinWidth int
}

// lastWidth is what the last column gets at least, before others are left out for it.
const lastWidth = 12

// PrintTable prints rows under their titles. Every column is as wide as its values need; where that is too much,
// columns that can be spared are left out, and the last is clipped. What came over the network must have passed
// printable.
func PrintTable(w io.Writer, p Palette, columns []Column, rows [][]string) error {
	return PrintTableWithin(w, p, TableWidth, columns, rows)
}

// PrintTableWithin is printTable for so many columns; with 0 nothing is cut or left out.
func PrintTableWithin(w io.Writer, p Palette, most int, columns []Column, rows [][]string) error {
	if most == 0 {
		most = math.MaxInt
		columns = slices.Clone(columns)
		for i := range columns {
			columns[i].MaxWidth = 0
		}
	}
	widths := widthsOf(columns, rows)
	for {
		total := -2
		for i, width := range widths {
			if i == len(widths)-1 {
				width = min(width, cmp.Or(columns[i].MinWidth, lastWidth))
			}
			total += width + 2
		}
		at := leastImportant(columns)
		if total <= most || at < 0 {
			break
		}
		columns, rows = RemoveColumn(columns, rows, at)
		widths = slices.Delete(widths, at, at+1)
	}
	left := most
	for i, c := range columns {
		if i == len(columns)-1 {
			widths[i] = min(widths[i], max(left, len(c.Title)))
		}
		left -= widths[i] + 2
	}
	var b strings.Builder
	for i, c := range columns {
		writeCell(&b, p.Bold(padCell(c.Title, widths[i], c.Right, i == len(columns)-1)), i)
	}
	b.WriteByte('\n')
	for _, row := range rows {
		for i, c := range columns {
			text := padCell(clipRunes(row[i], widths[i]), widths[i], c.Right, i == len(columns)-1)
			if c.Paint != nil {
				text = c.Paint(row[i], text)
			}
			writeCell(&b, text, i)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func widthsOf(columns []Column, rows [][]string) []int {
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = utf8.RuneCountInString(c.Title)
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		if c.MaxWidth > 0 {
			widths[i] = min(widths[i], c.MaxWidth)
		}
	}
	return widths
}

// leastImportant is the place of the column that is missed least, or -1 where none can be left out.
func leastImportant(columns []Column) int {
	at := -1
	for i, c := range columns {
		if c.DropOrder > 0 && (at < 0 || c.DropOrder > columns[at].DropOrder) {
			at = i
		}
	}
	return at
}

// RemoveColumn returns the table without a column, and leaves what it was given as it is.
func RemoveColumn(columns []Column, rows [][]string, at int) ([]Column, [][]string) {
	fewer := make([][]string, len(rows))
	for i, row := range rows {
		fewer[i] = slices.Delete(slices.Clone(row), at, at+1)
	}
	return slices.Delete(slices.Clone(columns), at, at+1), fewer
}

func writeCell(b *strings.Builder, text string, i int) {
	if i > 0 {
		b.WriteString("  ")
	}
	b.WriteString(text)
}

func padCell(s string, width int, right, last bool) string {
	gap := strings.Repeat(" ", max(width-utf8.RuneCountInString(s), 0))
	switch {
	case right:
		return gap + s
	case last:
		return s
	}
	return s + gap
}

func clipRunes(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:max(most-1, 0)]) + "…"
}

// FormatCount prints a number in at most five characters.
func FormatCount(n int64) string {
	switch {
	case n < 100_000:
		return fmt.Sprint(n)
	case n < 1_000_000:
		return fmt.Sprintf("%dk", n/1000)
	case n < 100_000_000:
		return fmt.Sprintf("%.1fM", float64(n/100_000)/10)
	}
	return fmt.Sprintf("%dM", n/1_000_000)
}

// FormatAge prints a span of time with the unit that people would use.
func FormatAge(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d/time.Second))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d/time.Hour))
	}
	return fmt.Sprintf("%dd", int(d/(24*time.Hour)))
}

// FormatAgo prints how long ago an RFC 3339 time was, and "-" where there is none.
func FormatAgo(text string) string {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.IsZero() {
		return "-"
	}
	return FormatAge(time.Since(at))
}
