package adminserver

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/history"
)

// The numbers of events in a page.
const (
	defaultEventPage = 100
	maxEventPage     = 500
)

// Events searches the log. Its methods may be called concurrently. An error is history.ErrInvalidCursor, or means that
// Redis is unreachable.
type Events interface {
	Search(ctx context.Context, q history.Query) (history.Result, error)
}

func searchEvents(
	events Events, r *http.Request, request adminapi.SearchEventsRequest,
) (page adminapi.EventPage, err error) {
	q, err := newEventQuery(request, time.Now())
	if err != nil {
		return page, err
	}
	result, err := events.Search(r.Context(), q)
	for _, e := range result.Events {
		page.Data = append(page.Data, e.Describe())
	}
	page.Next, page.SearchedTo = result.Next, result.SearchedTo
	return page, err
}

func showEvent(s Sinks, r *http.Request, _ adminapi.Empty) (adminapi.EventDetails, error) {
	e, err := s.ShowEvent(r.Context(), r.PathValue("id"))
	if !callerFrom(r).Role.Allows(adminapi.RoleOperator) {
		// These contain data of accounts, or the configuration.
		e.Payload = nil
		for i := range e.Sinks {
			if s := &e.Sinks[i]; s.State == adminapi.DeliveryNotMatched {
				s.Detail = ""
				s.Reason, _, _ = strings.Cut(s.Reason, ": ") // the condition after when
			}
		}
	}
	return e, err
}

func newEventQuery(request adminapi.SearchEventsRequest, now time.Time) (history.Query, error) {
	q := history.Query{
		Filter: relay.Filter{
			Hubs: listOf(request.HubID), Accounts: listOf(request.AccountID), Containers: listOf(request.ContainerID),
			Environments: listOf(request.EnvironmentID), Clusters: listOf(request.Cluster),
		},
		DNSZone: request.DNSZone, Object: request.ObjectID, Publisher: request.Publisher, Before: request.After,
		Limit: min(cmp.Or(request.Limit, defaultEventPage), maxEventPage),
	}
	var err error
	if q.Filter.Topics, err = relay.ParsePatterns(splitTopics(request.Topics)); err != nil {
		return q, err
	}
	if q.Since, err = parseTimeParameter("since", request.Since, now); err != nil {
		return q, err
	}
	if q.Until, err = parseTimeParameter("until", request.Until, now); err != nil {
		return q, err
	}
	if !q.Since.IsZero() && !q.Until.IsZero() && !q.Until.After(q.Since) {
		return q, relay.NewError(relay.CodeInvalidArgument, "until is not later than since, so nothing is between them").
			WithExtra("parameter", "until")
	}
	return q, nil
}

// listOf returns a list of one value, or nil for an empty one.
func listOf(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}
