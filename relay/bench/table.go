package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"math"
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
func newRow(name string, measured float64, unit, baseline string, value float64) row {
	return row{
		Name: name, Measured: measured, Unit: unit,
		Baseline: baseline, BaselineValue: value, Ratio: measured / value,
	}
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
	_, _ = fmt.Fprintln(t, "what\tmeasured\tbaseline, same run\tratio\tbar\tok")
	for _, r := range rows {
		verdict := "yes"
		if !r.OK {
			verdict = "NO"
		}
		_, _ = fmt.Fprintf(t, "%s\t%s %s\t%s: %s %s\t%.2f\t%s\t%s\n",
			r.Name, formatNumber(r.Measured), r.Unit, r.Baseline, formatNumber(r.BaselineValue), r.Unit, r.Ratio,
			r.Bar, verdict)
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

const (
	plotLeft, plotWidth = 400.0, 560.0
	plotTop, plotLine   = 70.0, 24.0
	plotBottom          = 40.0
)

// drawPlot draws each row as a line in an SVG file: the ratio to its baseline on a logarithmic scale around 1, and
// the bar.
func drawPlot(w io.Writer, rows []row) {
	low, high := 0.5, 2.0
	for _, r := range rows {
		for _, v := range []float64{r.Ratio, r.limit} {
			if v > 0 && !math.IsInf(v, 0) {
				low, high = min(low, v/1.2), max(high, v*1.2)
			}
		}
	}
	x := func(v float64) float64 {
		at := math.Log(v/low) / math.Log(high/low)
		return plotLeft + plotWidth*min(max(at, 0), 1) // a ratio of 0 is at the edge
	}
	bottom := plotTop + plotLine*float64(len(rows))
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	p(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" font-family="sans-serif" font-size="12">`,
		plotLeft+plotWidth+150, bottom+plotBottom)
	p(`<rect width="100%%" height="100%%" fill="white"/>`)
	p(`<text x="10" y="24" font-size="15">hubrelay: measured / baseline of the same run</text>`)
	p(`<text x="10" y="44" fill="#555">` +
		`dot: the ratio, green if the bar is met; | the bar; the line at 1 is the baseline</text>`)
	for v := math.Pow(10, math.Ceil(math.Log10(low))); v <= high; v *= 10 {
		stroke := "#ddd"
		if math.Abs(v-1) < 1e-9 {
			stroke = "#444"
		}
		p(`<line x1="%.1f" y1="%.0f" x2="%.1f" y2="%.0f" stroke="%s"/>`, x(v), plotTop-8, x(v), bottom, stroke)
		p(`<text x="%.1f" y="%.0f" text-anchor="middle" fill="#555">%g</text>`, x(v), bottom+18, v)
	}
	for i, r := range rows {
		y := plotTop + plotLine*(float64(i)+0.5)
		color := "#2a7"
		if !r.OK {
			color = "#d33"
		}
		p(`<text x="%.0f" y="%.1f" text-anchor="end">%s</text>`, plotLeft-12, y+4, html.EscapeString(r.Name))
		p(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="2"/>`, x(1), y, x(r.Ratio), y, color)
		p(`<circle cx="%.1f" cy="%.1f" r="5" fill="%s"/>`, x(r.Ratio), y, color)
		if r.limit != 0 {
			p(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="black" stroke-width="3"/>`,
				x(r.limit), y-8, x(r.limit), y+8)
		}
		p(`<text x="%.0f" y="%.1f">%s %s</text>`,
			plotLeft+plotWidth+10, y+4, formatNumber(r.Measured), html.EscapeString(r.Unit))
	}
	p(`</svg>`)
}
