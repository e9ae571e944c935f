// Package durations parses and formats durations that may contain days and weeks.
package durations

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Units that time.ParseDuration does not know. A day is always 24 hours.
const (
	day  = 24 * time.Hour
	week = 7 * day
)

var longUnits = regexp.MustCompile(`^(-?)(?:(\d+)w)?(?:(\d+)d)?(.*)$`)

// Parse is time.ParseDuration, but text may start with whole weeks and days: 2w, 1d, 1d12h, -1w. A duration that does not
// fit into a time.Duration (292 years) is an error.
func Parse(text string) (time.Duration, error) {
	parts := longUnits.FindStringSubmatch(text)
	if parts == nil || parts[2] == "" && parts[3] == "" {
		return time.ParseDuration(text)
	}
	total := time.Duration(0)
	for i, unit := range []time.Duration{week, day} {
		count := parts[2+i]
		if count == "" {
			continue
		}
		n, err := strconv.ParseInt(count, 10, 64)
		if err != nil || n > int64(math.MaxInt64/unit) || total > math.MaxInt64-time.Duration(n)*unit {
			return 0, fmt.Errorf("duration %q is too long", text)
		}
		total += time.Duration(n) * unit
	}
	if rest := parts[4]; rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 || rest[0] == '+' {
			return 0, fmt.Errorf("invalid duration %q", text)
		}
		if total > math.MaxInt64-d {
			return 0, fmt.Errorf("duration %q is too long", text)
		}
		total += d
	}
	if parts[1] == "-" {
		total = -total
	}
	return total, nil
}

// Format formats d without trailing zero units, such as 24h instead of 24h0m0s.
func Format(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Value is a flag of a command (pflag.Value).
type Value time.Duration

// Set parses text.
func (v *Value) Set(text string) error {
	d, err := Parse(text)
	if err == nil {
		*v = Value(d)
	}
	return err
}

// String returns the duration in the format of [Format].
func (v *Value) String() string { return Format(time.Duration(*v)) }

// Type is the name of the type in help.
func (v *Value) Type() string { return "duration" }
