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

// mostStolen is the share of the processors that a hypervisor may take for others in a round that is calm: where it took
// more, the round says how busy other machines were.
const mostStolen = 0.005

// calmest runs rounds, counted from one, until enough of them were calm, with spare ones where some were not. It returns
// count of them, those in which the least was stolen.
func calmest[T any](count, spare int, round func(n int) (T, error)) ([]T, error) {
	type one struct {
		result T
		stolen float64
	}
	var all []one
	calm := 0
	for n := 1; n <= count+spare && calm < count; n++ {
		var o one
		var err error
		o.stolen, err = stolenDuring(func() (err error) {
			o.result, err = round(n)
			return err
		})
		if err != nil {
			return nil, err
		}
		if all = append(all, o); o.stolen <= mostStolen {
			calm++
		}
	}
	slices.SortStableFunc(all, func(a, b one) int { return cmp.Compare(a.stolen, b.stolen) })
	if len(all) > count {
		fmt.Fprintf(os.Stderr, "a hypervisor gave the processors to other machines in %d of %d rounds, and up to %.1f %% of them in those that count\n",
			len(all)-calm, len(all), 100*all[count-1].stolen)
	}
	results := make([]T, count)
	for i := range results {
		results[i] = all[i].result
	}
	return results, nil
}

// stolenDuring runs do and returns which share of the processors' time a hypervisor gave to other machines meanwhile.
func stolenDuring(do func() error) (share float64, err error) {
	before, err := stolen()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return 0, err
	}
	took := time.Since(began) * time.Duration(runtime.NumCPU())
	after, err := stolen()
	return float64(after-before) / float64(took), err
}

// stolen is what was given to other machines so far, of all processors; nothing where the system does not tell.
func stolen() (time.Duration, error) {
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
