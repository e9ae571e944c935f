package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"
)

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
