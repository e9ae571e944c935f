package adminserver

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

// maxReplayIDs is the maximum number of IDs that one request names.
const maxReplayIDs = 1000

func newReplaySelection(q adminapi.ReplayRequest, now time.Time) (replay.Selection, error) {
	s := replay.Selection{After: q.After, FailedOnly: q.FailedOnly, DryRun: q.DryRun}
	reject := func(code relay.Code, detail, pointer string) (replay.Selection, error) {
		return s, relay.NewError(code, detail).WithPointer(pointer)
	}
	if q.After == "" && len(q.EventIDs) == 0 {
		return reject(relay.CodeMissingArgument, "after must be a cursor or a time, or event_ids must name events", "/after")
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
			return reject(relay.CodeInvalidArgument, "until is not later than the start of the replay, so no events are between them", "/until")
		}
	}
	topics := splitTopics(q.Topics)
	patterns, err := relay.ParsePatterns(topics)
	if err != nil {
		return reject(relay.CodeInvalidArgument, err.Error(), "/topics")
	}
	if len(q.EventIDs) > maxReplayIDs {
		return reject(relay.CodeInvalidArgument, fmt.Sprintf("at most %d event_ids are allowed", maxReplayIDs), "/event_ids")
	}
	ids := make(map[string]bool, len(q.EventIDs))
	for _, id := range q.EventIDs {
		if _, ok := history.ParseEventID(id); !ok {
			return reject(relay.CodeInvalidArgument, strconv.Quote(relay.Truncate(id, 100))+
				" is not the ID of an event, which has 24 hexadecimal digits", "/event_ids")
		}
		ids[id] = true
	}
	s.Selects = func(n relay.Notification) bool {
		// An empty list of patterns does not match operational topics, but without topics all are selected.
		return (len(topics) == 0 || patterns.Match(n.Topic)) && (q.HubID == "" || n.Hub == q.HubID) &&
			(len(ids) == 0 || ids[n.ID])
	}
	return s, nil
}

// describeReplay returns the selection of a replay for the audit log. after is its cursor or time.
func describeReplay(q adminapi.ReplayRequest, after string) string {
	var parts []string
	for _, item := range []struct{ name, value string }{
		{"after", after},
		{"until", q.Until},
		{"topics", strings.Join(q.Topics, ",")},
		{"hub", q.HubID},
		{"events", strings.Join(q.EventIDs, " ")},
	} {
		if item.value != "" {
			parts = append(parts, item.name+" "+item.value)
		}
	}
	if q.FailedOnly {
		parts = append(parts, "failed only")
	}
	return strings.Join(parts, ", ")
}

func replaySink(s Sinks, r *http.Request, request adminapi.ReplayRequest) (adminapi.ReplayResult, error) {
	selection, err := newReplaySelection(request, time.Now())
	if err != nil {
		return adminapi.ReplayResult{}, err
	}
	result, err := s.ReplaySink(r.Context(), r.PathValue("name"), selection)
	format := "%d replayed"
	if request.DryRun {
		format = "dry run: %d would be replayed"
	}
	format += ", %d skipped"
	if err == nil && !result.Complete && request.After != "" {
		format += ", the log lacks events of that time"
	}
	*auditDetail(r) = fmt.Sprintf(format+"; %s", result.Scheduled, result.Waiting, describeReplay(request, selection.After))
	switch {
	case errors.Is(err, redisconn.ErrFull):
		err = replayStorageError(result)
	case errors.Is(err, store.ErrFull):
		advice := "increase the limit and repeat"
		if result.Next != "" {
			advice = "fix the destination and wait until the backlog shrinks, or increase the limit, then continue after " + result.Next
		}
		err = backlogFullError(result.Scheduled, fmt.Sprintf("%d were scheduled before; %s", result.Scheduled, advice))
	case errors.Is(err, redisconn.ErrUnavailable) && result.Scheduled > 0 && result.Next != "" && !request.DryRun:
		err = relay.NewError(relay.CodeNotReady, fmt.Sprintf("the relay could not reach Redis; %d were scheduled before: continue "+
			"after %s", result.Scheduled, result.Next)).WithExtra("replayed", result.Scheduled)
	}
	return adminapi.ReplayResult{
		Replayed: result.Scheduled, Skipped: result.Waiting, Complete: result.Complete, DryRun: request.DryRun,
	}, err
}

// replayStorageError returns the error of a replay that a nearly full Redis ended.
func replayStorageError(r replay.Result) error {
	advice := "then repeat"
	if r.Next != "" && r.Scheduled > 0 {
		advice = "then continue after " + r.Next
	}
	return relay.NewError(relay.CodeStorageFull, fmt.Sprintf("the storage of the relay is nearly full; %d were scheduled "+
		"before: wait until the sinks have delivered some, or raise redis.max_memory, %s", r.Scheduled, advice)).
		WithExtra("replayed", r.Scheduled)
}
