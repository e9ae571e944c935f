package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"
)

// maxStolenShare is the maximum share of CPU time that a hypervisor may steal in a calm round. A round with more
// measures how busy other machines were.
const maxStolenShare = 0.005

// runCalmRounds runs rounds, counted from one, until count rounds were calm or the spare rounds are used up. It
// returns the count rounds with the least stolen time.
func runCalmRounds[T any](count, spare int, round func(n int) (T, error)) ([]T, error) {
	type one struct {
		result T
		stolen float64
	}
	var all []one
	calm := 0
	for n := 1; n <= count+spare && calm < count; n++ {
		var o one
		var err error
		o.stolen, err = measureStolen(func() (err error) {
			o.result, err = round(n)
			return err
		})
		if err != nil {
			return nil, err
		}
		if all = append(all, o); o.stolen <= maxStolenShare {
			calm++
		}
	}
	slices.SortStableFunc(all, func(a, b one) int { return cmp.Compare(a.stolen, b.stolen) })
	if len(all) > count {
		fmt.Fprintf(os.Stderr,
			"a hypervisor stole CPU time in %d of %d rounds, and up to %.1f %% in the counted ones\n",
			len(all)-calm, len(all), 100*all[count-1].stolen)
	}
	results := make([]T, count)
	for i := range results {
		results[i] = all[i].result
	}
	return results, nil
}

// measureStolen returns the share of CPU time that a hypervisor stole during do.
func measureStolen(do func() error) (share float64, err error) {
	before, err := stolenTime()
	if err != nil {
		return 0, err
	}
	startedAt := time.Now()
	if err := do(); err != nil {
		return 0, err
	}
	took := time.Since(startedAt) * time.Duration(runtime.NumCPU())
	after, err := stolenTime()
	return float64(after-before) / float64(took), err
}

// stolenTime returns the total stolen time of all processors, or 0 if the system does not report it.
func stolenTime() (time.Duration, error) {
	const (
		field = 8                 // of the line "cpu", see proc_stat(5)
		tick  = time.Second / 100 // USER_HZ
	)
	text, err := os.ReadFile("/proc/stat")
	if os.IsNotExist(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	words := bytes.Fields(line)
	if len(words) <= field {
		return 0, nil
	}
	ticks, err := strconv.ParseInt(string(words[field]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the stolen time in /proc/stat: %w", err)
	}
	return time.Duration(ticks) * tick, nil
}
