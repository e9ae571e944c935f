package source

import (
	"fmt"
	"testing"
)

// An upstream that closes each connection for another reason cannot fill the log.
func TestLogThrottle_LimitsAllRecords(t *testing.T) {
	t.Parallel()
	l, logged := newLogThrottle(), 0
	for i := range 3 * maxLogRecords {
		for range 2 { // equal errors count once
			if l.allow("away", fmt.Errorf("reason %d", i)) {
				logged++
			}
		}
	}
	if logged != maxLogRecords {
		t.Errorf("got %d records, want %d", logged, maxLogRecords)
	}
}
