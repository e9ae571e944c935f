package main

import (
	"cmp"
	"slices"
	"time"
)

// percentile returns the p-th percentile of values, or 0 without values.
func percentile(values []time.Duration, p int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)*p/100]
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// medianRatio returns the round with the median of the ratios. The best value of each side would combine two lucky
// moments.
func medianRatio(rows []row) row {
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.Ratio, b.Ratio) })
	return rows[len(rows)/2]
}

// alternate reverses the order in every second round.
func alternate[T any](round int, items ...T) []T {
	if round%2 == 1 {
		slices.Reverse(items)
	}
	return items
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// measureRate returns the rate per second of the n operations in do.
func measureRate(n int, do func() error) (float64, error) {
	startedAt := time.Now()
	err := do()
	return float64(n) / time.Since(startedAt).Seconds(), err
}

func timeCall(do func() error) (time.Duration, error) {
	startedAt := time.Now()
	err := do()
	return time.Since(startedAt), err
}
