package httpclient

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxRetryAfter is the maximum result of [RetryAfter]. relay/internal/delivery has a lower limit.
const MaxRetryAfter = 365 * 24 * time.Hour

// RetryAfter parses the Retry-After header: seconds or an HTTP date (RFC 9110, section 10.2.3). The result is between 0
// and [MaxRetryAfter]. It returns false if the header is missing or invalid.
func RetryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseUint(value, 10, 63); err == nil {
		if seconds > uint64(MaxRetryAfter/time.Second) {
			return MaxRetryAfter, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), MaxRetryAfter), true
}
