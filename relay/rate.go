package relay

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Rate is the number of attempts that a sink may make per period. The zero value is no limit.
type Rate struct {
	Count int
	Per   time.Duration
}

// maxRate keeps the interval between attempts above one microsecond.
const maxRate = 100_000

var errRate = errors.New("write a number and a unit of time, such as 10/s, 90/m or 1000/h")

// ParseRate parses "10/s", "90/m" or "1000/h", with a count from 1 to 100000. An empty text is no limit. The error
// is an instruction that can follow the name of a key.
func ParseRate(text string) (Rate, error) {
	if text == "" {
		return Rate{}, nil
	}
	number, unit, ok := strings.Cut(text, "/")
	count, err := strconv.Atoi(strings.TrimSpace(number))
	if !ok || err != nil {
		return Rate{}, errRate
	}
	if count < 1 || count > maxRate {
		return Rate{}, fmt.Errorf("choose a number from 1 to %d before the unit of time", maxRate)
	}
	switch strings.TrimSpace(unit) {
	case "s":
		return Rate{count, time.Second}, nil
	case "m":
		return Rate{count, time.Minute}, nil
	case "h":
		return Rate{count, time.Hour}, nil
	}
	return Rate{}, errRate
}

// Limited reports whether the rate is a limit.
func (r Rate) Limited() bool { return r.Count > 0 && r.Per > 0 }

// Interval returns the average time between attempts, or 0 without a limit.
func (r Rate) Interval() time.Duration {
	if !r.Limited() {
		return 0
	}
	return r.Per / time.Duration(r.Count)
}

// String formats the rate in the syntax of [ParseRate].
func (r Rate) String() string {
	if !r.Limited() {
		return ""
	}
	unit := map[time.Duration]string{time.Second: "s", time.Minute: "m", time.Hour: "h"}[r.Per]
	if unit == "" {
		unit = r.Per.String()
	}
	return strconv.Itoa(r.Count) + "/" + unit
}

// MarshalText returns [Rate.String] as bytes.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses the syntax of [ParseRate].
func (r *Rate) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRate(string(text))
	return err
}
