package adminserver

import (
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/durations"
	"github.com/hubrelay/hubrelay/relay"
)

// splitTopics splits lists of patterns that are separated by commas.
func splitTopics(lists []string) (topics []string) {
	for topic := range strings.SplitSeq(strings.Join(lists, ","), ",") {
		if topic = strings.TrimSpace(topic); topic != "" {
			topics = append(topics, topic)
		}
	}
	return topics
}

func errSince() error {
	return relay.NewError(relay.CodeInvalidArgument,
		"since is neither a time such as 2026-11-21T04:00:00Z nor an age such as 24h").WithExtra("parameter", "since")
}

// parseTime parses a time (RFC 3339) or an age such as 24h.
func parseTime(text string, now time.Time) (time.Time, bool) {
	if age, err := durations.Parse(text); err == nil && age > 0 {
		return now.Add(-age), true
	}
	t, err := time.Parse(time.RFC3339, text)
	return t, err == nil
}
