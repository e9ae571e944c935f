package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// tableWidth is the number of columns that a table may take.
const tableWidth = 100

// column describes one column of a table.
type column struct {
	title string
	// most is the greatest width; longer values are clipped. 0 is no bound, and for the last column what is left.
	most  int
	right bool
	// paint colours a cell and may be nil.
	paint func(cell, padded string) string
}

// printTable prints rows under their titles. Every column is as wide as its values need, and the last is clipped so that
// the table fits. What came over the network must have passed printable.
func printTable(w io.Writer, p palette, columns []column, rows [][]string) error {
	widths := make([]int, len(columns))
	left := tableWidth
	for i, c := range columns {
		widths[i] = utf8.RuneCountInString(c.title)
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		if c.most > 0 {
			widths[i] = min(widths[i], c.most)
		}
		if i == len(columns)-1 {
			widths[i] = min(widths[i], max(left, len(c.title)))
		}
		left -= widths[i] + 2
	}
	var b strings.Builder
	for i, c := range columns {
		cell(&b, p.bold(pad(c.title, widths[i], c.right, i == len(columns)-1)), i)
	}
	b.WriteByte('\n')
	for _, row := range rows {
		for i, c := range columns {
			text := pad(clipRunes(row[i], widths[i]), widths[i], c.right, i == len(columns)-1)
			if c.paint != nil {
				text = c.paint(row[i], text)
			}
			cell(&b, text, i)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func cell(b *strings.Builder, text string, i int) {
	if i > 0 {
		b.WriteString("  ")
	}
	b.WriteString(text)
}

func pad(s string, width int, right, last bool) string {
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

// count prints a number in at most five characters.
func count(n int64) string {
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

// age prints a span of time with the unit that people would use.
func age(d time.Duration) string {
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

// ago prints how long ago an RFC 3339 time was, and "-" where there is none.
func ago(text string) string {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.IsZero() {
		return "-"
	}
	return age(time.Since(at))
}
