// Package term reads from and prints to terminals: tables, colors, progress bars, log lines, and passwords that are
// not echoed.
//
// Text is plain if the output is not a terminal. Text from the network must pass through [Sanitize] before it is
// printed. This package does not depend on the commands and makes no requests.
package term

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// TableWidth is the maximum width of a table, in columns.
const TableWidth = 100

// Column describes a column of a table.
type Column struct {
	Title string
	// MaxWidth limits the width; longer values are truncated. 0 means no limit, except for the last column.
	MaxWidth int
	Right    bool
	// DropOrder is positive if the column may be omitted in a table that is too wide. The column with the highest
	// DropOrder is omitted first.
	DropOrder int
	// Paint colors a cell. It may be nil.
	Paint func(cell, padded string) string
	// MinWidth is the width that the last column needs before other columns are omitted. 0 is the default of 12.
	MinWidth int
}

// lastWidth is the default of MinWidth.
const lastWidth = 12

// PrintTable prints rows with a title line. Columns are as wide as their values. If the table is too wide, columns
// with a DropOrder are omitted and the last column is truncated. Cells from the network must have passed [Sanitize].
func PrintTable(w io.Writer, p Palette, columns []Column, rows [][]string) error {
	return PrintTableWithin(w, p, TableWidth, columns, rows)
}

// PrintTableWithin is PrintTable with a maximum width in columns. With 0 it omits and truncates nothing.
func PrintTableWithin(w io.Writer, p Palette, maxWidth int, columns []Column, rows [][]string) error {
	if maxWidth == 0 {
		maxWidth = math.MaxInt
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
		index := nextToDrop(columns)
		if total <= maxWidth || index < 0 {
			break
		}
		columns, rows = RemoveColumn(columns, rows, index)
		widths = slices.Delete(widths, index, index+1)
	}
	remaining := maxWidth
	for i, c := range columns {
		if i == len(columns)-1 {
			widths[i] = min(widths[i], max(remaining, len(c.Title)))
		}
		remaining -= widths[i] + 2
	}
	var b strings.Builder
	for i, c := range columns {
		writeCell(&b, p.Bold(padCell(c.Title, widths[i], c.Right, i == len(columns)-1)), i)
	}
	b.WriteByte('\n')
	for _, row := range rows {
		for i, c := range columns {
			text := padCell(truncateRunes(row[i], widths[i]), widths[i], c.Right, i == len(columns)-1)
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

// nextToDrop returns the index of the column to omit next, or -1 if none may be omitted.
func nextToDrop(columns []Column) int {
	index := -1
	for i, c := range columns {
		if c.DropOrder > 0 && (index < 0 || c.DropOrder > columns[index].DropOrder) {
			index = i
		}
	}
	return index
}

// RemoveColumn returns a copy of the table without the column at index.
func RemoveColumn(columns []Column, rows [][]string, index int) ([]Column, [][]string) {
	fewer := make([][]string, len(rows))
	for i, row := range rows {
		fewer[i] = slices.Delete(slices.Clone(row), index, index+1)
	}
	return slices.Delete(slices.Clone(columns), index, index+1), fewer
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

func truncateRunes(s string, maxWidth int) string {
	if utf8.RuneCountInString(s) <= maxWidth {
		return s
	}
	return string([]rune(s)[:max(maxWidth-1, 0)]) + "…"
}

// FormatCount formats a number with at most five characters.
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

// FormatBytes formats a size with its usual unit.
func FormatBytes(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/(1<<10), 0
	for value >= 1<<10 && unit < len(units)-1 {
		value, unit = value/(1<<10), unit+1
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}

// FormatAge formats a duration with its usual unit.
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

// FormatAgo formats the time since at, or returns "-" if at is zero.
func FormatAgo(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return FormatAge(time.Since(at))
}

// Pluralize returns n and thing, which is in the plural unless n is 1: "2 events", "2 deliveries".
func Pluralize(n int, thing string) string {
	switch stem, endsInRY := strings.CutSuffix(thing, "ry"); {
	case n == 1:
	case endsInRY:
		thing = stem + "ries"
	default:
		thing += "s"
	}
	return strconv.Itoa(n) + " " + thing
}

// ProgramName returns the program name for printed commands, so they work in the current directory.
func ProgramName() string {
	if strings.ContainsRune(os.Args[0], filepath.Separator) {
		return os.Args[0]
	}
	return "hubrelay"
}
