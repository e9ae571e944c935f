package main

import (
	"fmt"
	"html"
	"io"
	"math"
)

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
	p(`<text x="10" y="24" font-size="15">hubrelay, measured : beside it in the same run</text>`)
	p(`<text x="10" y="44" fill="#555">dot: the ratio, green where the bar is kept; | the bar; the line at 1 is what stands beside it</text>`)
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
			p(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="black" stroke-width="3"/>`, x(r.limit), y-8, x(r.limit), y+8)
		}
		p(`<text x="%.0f" y="%.1f">%s %s</text>`, plotLeft+plotWidth+10, y+4, formatNumber(r.Measured), html.EscapeString(r.Unit))
	}
	p(`</svg>`)
}
