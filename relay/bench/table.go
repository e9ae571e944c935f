package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// row is one promise: a measured value, a baseline, and the bar.
type row struct {
	Name          string  `json:"what"`
	Measured      float64 `json:"measured"`
	Unit          string  `json:"unit"`
	Baseline      string  `json:"beside"`
	BaselineValue float64 `json:"floor"`
	Ratio         float64 `json:"ratio"`
	Bar           string  `json:"bar"`
	OK            bool    `json:"ok"`

	limit float64 // the bar as a ratio
}

// newRow returns a row without a bar.
func newRow(what string, measured float64, unit, beside string, floor float64) row {
	return row{Name: what, Measured: measured, Unit: unit, Baseline: beside, BaselineValue: floor, Ratio: measured / floor}
}

func (r row) atLeast(bar float64) row {
	r.Bar, r.OK, r.limit = fmt.Sprintf("≥ %s %s", formatNumber(bar), r.Unit), r.Measured >= bar, bar/r.BaselineValue
	return r
}

func (r row) atMost(bar float64) row {
	r.Bar, r.OK, r.limit = fmt.Sprintf("≤ %s %s", formatNumber(bar), r.Unit), r.Measured <= bar, bar/r.BaselineValue
	return r
}

func (r row) ratioAtLeast(bar float64) row {
	r.Bar, r.OK, r.limit = fmt.Sprintf("ratio ≥ %g", bar), r.Ratio >= bar, bar
	return r
}

func (r row) ratioAtMost(bar float64) row {
	r.Bar, r.OK, r.limit = fmt.Sprintf("ratio ≤ %g", bar), r.Ratio <= bar, bar
	return r
}

// forComparison marks a row without a promise.
func (r row) forComparison() row {
	r.Bar, r.OK = "none", true
	return r
}

func printTable(w io.Writer, rows []row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "what\tmeasured\tbeside it, in the same run\tratio\tbar\tok")
	for _, r := range rows {
		verdict := "yes"
		if !r.OK {
			verdict = "NO"
		}
		_, _ = fmt.Fprintf(t, "%s\t%s %s\t%s: %s %s\t%.2f\t%s\t%s\n",
			r.Name, formatNumber(r.Measured), r.Unit, r.Baseline, formatNumber(r.BaselineValue), r.Unit, r.Ratio, r.Bar, verdict)
	}
	_ = t.Flush()
}

// writeResults writes the table as text and as JSON, and the plot, to a directory.
func writeResults(dir string, rows []row) error {
	var table, plot bytes.Buffer
	printTable(&table, rows)
	drawPlot(&plot, rows)
	data, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"table.txt": table.Bytes(), "table.json": append(data, '\n'), "plot.svg": plot.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func checkBars(rows []row) error {
	var names []string
	for _, r := range rows {
		if !r.OK {
			names = append(names, r.Name)
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("missed the bar: %s", strings.Join(names, "; "))
	}
	return nil
}

// formatNumber groups the digits of large numbers and prints two decimals of small ones.
func formatNumber(v float64) string {
	if v < 100 {
		return strings.TrimSuffix(fmt.Sprintf("%.2f", v), ".00")
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
