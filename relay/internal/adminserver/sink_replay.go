package adminserver

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// maxReplayIDs is the maximum number of IDs that one request names.
const maxReplayIDs = 1000

// ReplaySelection selects notifications that a sink receives again. The filter of the sink must match them, too.
type ReplaySelection struct {
	// After is a time (RFC 3339), the cursor of a stream, or the ID of an entry of the log. Empty means the beginning.
	After string
	// Until excludes notifications that were stored at that time or later. Zero means no limit.
	Until time.Time
	// Selects reports whether a notification is selected.
	Selects func(relay.Notification) bool
	// DryRun only counts the notifications.
	DryRun bool
}

// replayRequest is the body of a request to replay. After and Until can also be ages such as 24h.
type replayRequest struct {
	After string `json:"after"`
	Until string `json:"until"`
	// Topic is one pattern, or several separated by commas.
	Topic  string   `json:"topic"`
	Hub    string   `json:"hub"`
	IDs    []string `json:"ids"`
	DryRun bool     `json:"dry_run"`
}

func (q *replayRequest) toSelection(now time.Time) (ReplaySelection, error) {
	s := ReplaySelection{After: q.After, DryRun: q.DryRun}
	reject := func(code relay.Code, detail, pointer string) (ReplaySelection, error) {
		return s, relay.NewError(code, detail).WithPointer(pointer)
	}
	if q.After == "" && len(q.IDs) == 0 {
		return reject(relay.CodeMissingArgument, "after must be a cursor or a time, or ids must name notifications", "/after")
	}
	start, hasStart := parseTime(q.After, now)
	if hasStart {
		s.After = start.UTC().Format(time.RFC3339Nano)
	}
	if q.Until != "" {
		var ok bool
		if s.Until, ok = parseTime(q.Until, now); !ok {
			return reject(relay.CodeInvalidArgument,
				"until is neither a time such as 2026-11-21T04:00:00Z nor an age such as 24h", "/until")
		}
		if hasStart && !s.Until.After(start) {
			return reject(relay.CodeInvalidArgument, "until is not later than after, so nothing is between them", "/until")
		}
	}
	topics := splitTopics(q.Topic)
	patterns, err := relay.ParsePatterns(topics)
	if err != nil {
		return reject(relay.CodeInvalidArgument, err.Error(), "/topic")
	}
	if len(q.IDs) > maxReplayIDs {
		return reject(relay.CodeInvalidArgument, fmt.Sprintf("at most %d ids are allowed", maxReplayIDs), "/ids")
	}
	ids := make(map[string]bool, len(q.IDs))
	for _, id := range q.IDs {
		ids[id] = true
	}
	s.Selects = func(n relay.Notification) bool {
		// An empty list of patterns does not match operational topics, but without topics all are selected.
		return (len(topics) == 0 || patterns.Match(n.Topic)) && (q.Hub == "" || n.Hub == q.Hub) &&
			(len(ids) == 0 || ids[n.ID])
	}
	return s, nil
}

// describeSelection describes the selection in the audit log.
func (q *replayRequest) describeSelection() string {
	var parts []string
	for _, item := range []struct{ name, value string }{
		{"after", q.After}, {"until", q.Until}, {"topic", q.Topic}, {"hub", q.Hub}, {"ids", strings.Join(q.IDs, " ")},
	} {
		if item.value != "" {
			parts = append(parts, item.name+" "+item.value)
		}
	}
	return strings.Join(parts, ", ")
}

func replaySink(s Sinks, r *http.Request) (int, any, error) {
	var request replayRequest
	if err := decodeBody(r, &request); err != nil {
		return 0, nil, err
	}
	selection, err := request.toSelection(time.Now())
	if err != nil {
		return 0, nil, err
	}
	result, err := s.Replay(r.Context(), r.PathValue("name"), selection)
	outcome := "%d replayed"
	if request.DryRun {
		outcome = "dry run: %d would be replayed"
	}
	*auditDetail(r) = fmt.Sprintf(outcome+", %d waiting, complete: %t; %s", result.Scheduled, result.Waiting,
		result.Complete, request.describeSelection())
	if errors.Is(err, store.ErrFull) {
		err = backlogFullError(result.Scheduled, "increase backlog and repeat")
		if result.Next != "" {
			err = backlogFullError(result.Scheduled, "fix the destination and wait until the backlog shrinks, or "+
				"increase backlog, then continue after "+result.Next)
		}
	}
	return http.StatusAccepted, struct {
		// Replayed is the number of deliveries that were scheduled, or with dry_run the maximum number that would be.
		Replayed int `json:"replayed"`
		// Waiting is the number of notifications that were skipped because they are still to be delivered.
		Waiting int `json:"waiting"`
		// Complete is false if the log no longer contains everything after the position.
		Complete bool `json:"complete"`
		// DryRun is true if nothing was replayed.
		DryRun bool `json:"dry_run"`
	}{result.Scheduled, result.Waiting, result.Complete, request.DryRun}, err
}
