package relay

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes in the configuration of sinks and plugins.
type Size int64

// UnmarshalText parses a size such as 268435456 or 256MiB. An empty text is 0.
func (s *Size) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*s = 0
		return nil
	}
	digits, unit := string(text), int64(1)
	for name, value := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if before, ok := strings.CutSuffix(digits, name); ok {
			digits, unit = strings.TrimSpace(before), value
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return errors.New("write a number of bytes, optionally with KiB, MiB or GiB, such as 256MiB")
	}
	*s = Size(n * unit)
	return nil
}

// MarshalText formats the size with the largest unit that divides it. Zero is the empty text.
func (s Size) MarshalText() ([]byte, error) {
	switch {
	case s == 0:
		return nil, nil
	case s%(1<<30) == 0:
		return fmt.Appendf(nil, "%dGiB", s>>30), nil
	case s%(1<<20) == 0:
		return fmt.Appendf(nil, "%dMiB", s>>20), nil
	case s%(1<<10) == 0:
		return fmt.Appendf(nil, "%dKiB", s>>10), nil
	}
	return strconv.AppendInt(nil, int64(s), 10), nil
}
