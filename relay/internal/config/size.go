package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes, written as 1048576, 1024KiB or 1MiB. The units kB, MB and GB are powers of 1000.
type Size int64

type sizeUnit struct {
	suffix string
	bytes  int64
}

func sizeUnits() []sizeUnit {
	return []sizeUnit{
		{"KiB", 1 << 10},
		{"MiB", 1 << 20},
		{"GiB", 1 << 30},
		{"kB", 1e3},
		{"KB", 1e3},
		{"MB", 1e6},
		{"GB", 1e9},
		{"B", 1},
	}
}

// ParseSize parses a whole number of bytes with an optional unit.
func ParseSize(s string) (Size, error) {
	digits, factor := s, int64(1)
	for _, u := range sizeUnits() {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			digits, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("%q is not a size: write a number of bytes, optionally with KiB, MiB or GiB", s)
	}
	return Size(n * factor), nil
}

// String formats the size with the largest binary unit that divides it.
func (s Size) String() string {
	units := sizeUnits()
	for i := 2; i >= 0; i-- {
		if s != 0 && int64(s)%units[i].bytes == 0 {
			return strconv.FormatInt(int64(s)/units[i].bytes, 10) + units[i].suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
