package adminserver

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/durations"
	"github.com/hubrelay/hubrelay/relay"
)

// pageLimit parses the limit of a page. Without a limit it returns 0.
func pageLimit(query url.Values, maxLimit int) (int, error) {
	text := query.Get("limit")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, relay.NewError(relay.CodeInvalidArgument, "limit is not a number from 1 to "+strconv.Itoa(maxLimit))
	}
	return n, nil
}

// splitTopics splits a list of patterns.
func splitTopics(text string) (topics []string) {
	for topic := range strings.SplitSeq(text, ",") {
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
