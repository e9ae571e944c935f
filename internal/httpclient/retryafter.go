package httpclient

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxRetryAfter bounds what [RetryAfter] returns; relay/internal/delivery caps it further.
const MaxRetryAfter = 365 * 24 * time.Hour

// RetryAfter reads the header of that name: seconds or an HTTP date (RFC 9110, 10.2.3). It returns false where the far
// side named no time, else one from 0 to [MaxRetryAfter].
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
