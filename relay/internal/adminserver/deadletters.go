package adminserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

// deadLetterView is an entry in a list of dead letters.
type deadLetterView struct {
	ID       string    `json:"id"`
	Topic    string    `json:"topic"`
	Hub      string    `json:"hub"`
	Account  string    `json:"account"`
	Time     time.Time `json:"time"`
	Reason   string    `json:"reason"`
	Attempts int       `json:"attempts"`
}

func newDeadLetterView(l store.DeadLetter) deadLetterView {
	return deadLetterView{l.ID, l.Topic, l.Hub, l.Account, l.Time, l.Reason, l.Attempts}
}

// pageResponse is a response with "next" next to "data".
type pageResponse struct {
	data any
	next string
}

func listDeadLetters(s Sinks, r *http.Request) (int, any, error) {
	query, refused := httpserver.ParseQuery(r, "topic", "hub", "since", "after", "limit")
	if refused != nil {
		return 0, nil, refused
	}
	f := deadLetterFilter{
		Topic: strings.Join(query["topic"],
			","), Hub: query.Get("hub"), Since: query.Get("since"), After: query.Get("after"),
	}
	var err error
	if f.Limit, err = pageLimit(query, store.MaxPage); err != nil {
		return 0, nil, err
	}
	sel, err := f.toSelection(time.Now())
	if err != nil {
		return 0, nil, err
	}
	page, err := s.DeadLetters(r.Context(), r.PathValue("name"), sel)
	if err != nil {
		return 0, nil, err
	}
	letters := make([]deadLetterView, len(page.Letters))
	for i, l := range page.Letters {
		letters[i] = newDeadLetterView(l)
	}
	return http.StatusOK, pageResponse{letters, page.Next}, nil
}

func showDeadLetter(s Sinks, r *http.Request) (int, any, error) {
	c, err := s.DeadLetter(r.Context(), r.PathValue("name"), r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	response := struct {
		deadLetterView
		Attempts []store.Attempt `json:"attempts"`
		// Notification is null if the delivery cannot be decoded. Raw contains the stored data then.
		Notification json.RawMessage `json:"notification"`
		// Notifications is set if the delivery has several.
		Notifications []json.RawMessage `json:"notifications,omitempty"`
		// Digest describes the notifications of a digest.
		Digest *relay.Digest `json:"digest,omitempty"`
		// Batch reports whether the delivery is a batch.
		Batch bool   `json:"batch,omitempty"`
		Raw   string `json:"raw,omitempty"`
	}{
		deadLetterView: newDeadLetterView(c.DeadLetter), Attempts: c.History, Digest: c.Digest, Batch: c.Batch,
		Raw: c.Raw,
	}
	if response.Attempts == nil {
		response.Attempts = []store.Attempt{}
	}
	for i, n := range c.Notifications {
		if i == 0 {
			response.Notification = n.Data
		}
		if len(c.Notifications) > 1 {
			response.Notifications = append(response.Notifications, n.Data)
		}
	}
	return http.StatusOK, response, nil
}

func replayDeadLetters(s Sinks, r *http.Request) (int, any, error) {
	result, err := changeDeadLetters(r, "replayed", s.ReplayDeadLetters, s.ReplaySelectedDeadLetters)
	if errors.Is(err, store.ErrFull) {
		err = backlogFullError(result.Done,
			"fix the destination and wait until the backlog shrinks, or increase backlog, then repeat")
	}
	return http.StatusOK, struct {
		Replayed   int    `json:"replayed"`
		Missing    int    `json:"missing"`
		Unreadable int    `json:"unreadable"`
		Next       string `json:"next,omitempty"`
	}{result.Done, result.Missing, result.Unreadable, result.Next}, err
}

func dropDeadLetters(s Sinks, r *http.Request) (int, any, error) {
	result, err := changeDeadLetters(r, "dropped", s.DropDeadLetters, s.DropSelectedDeadLetters)
	return http.StatusOK, struct {
		Dropped int    `json:"dropped"`
		Missing int    `json:"missing"`
		Next    string `json:"next,omitempty"`
	}{result.Done, result.Missing, result.Next}, err
}

// deadLetterFilter selects dead letters, in a query or a body.
type deadLetterFilter struct {
	// Topic is one pattern, or several separated by commas.
	Topic string `json:"topic,omitempty"`
	Hub   string `json:"hub,omitempty"`
	// Since is a time (RFC 3339) or an age such as 24h.
	Since string `json:"since,omitempty"`
	After string `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

func (f *deadLetterFilter) toSelection(now time.Time) (store.Selection, error) {
	sel := store.Selection{Topics: splitTopics(f.Topic), Hub: f.Hub, After: f.After, Limit: f.Limit}
	if f.Since == "" {
		return sel, nil
	}
	var ok bool
	if sel.Since, ok = parseTime(f.Since, now); !ok {
		return sel, errSince()
	}
	return sel, nil
}

// changeDeadLetters changes the dead letters that the body selects, and records the selection. pastTense is the verb of
// the change.
func changeDeadLetters(
	r *http.Request, pastTense string, some func(context.Context, string, []string) (store.ChangeResult, error),
	all func(context.Context, string, store.Selection) (store.ChangeResult, error),
) (result store.ChangeResult, err error) {
	var request struct {
		IDs []string `json:"ids,omitempty"`
		All bool     `json:"all,omitempty"`
		deadLetterFilter
	}
	if err := decodeBody(r, &request); err != nil {
		return store.ChangeResult{}, err
	}
	defer func() {
		selection, _ := json.Marshal(request) // strings and numbers always marshal
		*auditDetail(r) = fmt.Sprintf("%d %s, %d missing: %s", result.Done, pastTense, result.Missing, selection)
	}()
	name := r.PathValue("name")
	switch {
	case request.Limit < 0:
		return store.ChangeResult{}, relay.NewError(relay.CodeInvalidArgument,
			"limit is negative").WithPointer("/limit")
	case request.All && request.IDs != nil:
		return store.ChangeResult{}, relay.NewError(relay.CodeInvalidArgument,
			"set either ids or all").WithPointer("/ids")
	case request.All:
		sel, err := request.toSelection(time.Now())
		if err != nil {
			return store.ChangeResult{}, err
		}
		return all(r.Context(), name, sel)
	case len(request.IDs) == 0:
		return store.ChangeResult{}, relay.NewError(relay.CodeMissingArgument,
			`name the dead letters in ids, or set "all": true`).WithPointer("/ids")
	case request.deadLetterFilter != deadLetterFilter{}:
		return store.ChangeResult{}, relay.NewError(relay.CodeInvalidArgument, "filters require all instead of ids")
	}
	return some(r.Context(), name, request.IDs)
}
