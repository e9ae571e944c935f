package adminserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

func (h *apiHandler) handleDeadLetters(s Sinks, searches searchSlots) {
	handleOperation(h, adminapi.ListDeadLetters(), withLimit(searches, withComponent(s, listDeadLetters)))
	handleOperation(h, adminapi.ShowDeadLetter(), withComponent(s, showDeadLetter))
	handleOperation(h, adminapi.ReplayDeadLetters(), withComponent(s, replayDeadLetters))
	handleOperation(h, adminapi.DropDeadLetters(), withComponent(s, dropDeadLetters))
}

func newDeadLetter(l store.DeadLetter) adminapi.DeadLetter {
	return adminapi.DeadLetter{
		ID: l.ID, Topic: l.Topic, HubID: l.Hub, AccountID: l.Account, LastAttemptAt: l.LastAttemptAt, Reason: l.Reason, Error: l.Error,
		Attempts: l.Attempts,
	}
}

func listDeadLetters(
	s Sinks, r *http.Request, request adminapi.ListDeadLettersRequest,
) (list adminapi.Page[adminapi.DeadLetter], err error) {
	sel, err := newSelection(request.DeadLetterFilter, request.PageRequest, time.Now())
	if err != nil {
		return list, err
	}
	page, err := s.ListDeadLetters(r.Context(), r.PathValue("name"), sel)
	for _, l := range page.Letters {
		list.Data = append(list.Data, newDeadLetter(l))
	}
	list.Next = page.Next
	return list, err
}

func showDeadLetter(s Sinks, r *http.Request, _ adminapi.Empty) (adminapi.DeadLetterDetails, error) {
	c, err := s.ShowDeadLetter(r.Context(), r.PathValue("name"), r.PathValue("id"))
	if err != nil {
		return adminapi.DeadLetterDetails{}, err
	}
	details := adminapi.DeadLetterDetails{
		DeadLetter: newDeadLetter(c.DeadLetter), Attempts: []adminapi.Attempt{}, Events: []json.RawMessage{},
		Digest: c.Digest, Batch: c.Batch, Raw: c.Raw,
	}
	for _, a := range c.History {
		details.Attempts = append(details.Attempts, newAttempt(a))
	}
	for _, n := range c.Notifications {
		details.Events = append(details.Events, n.Data)
	}
	return details, nil
}

func replayDeadLetters(
	s Sinks, r *http.Request, request adminapi.ChangeDeadLettersRequest,
) (adminapi.ChangeDeadLettersResult, error) {
	result, err := changeDeadLetters(r, "replayed", request, s.ReplayDeadLetters, s.ReplaySelectedDeadLetters)
	if errors.Is(err, store.ErrFull) {
		err = backlogFullError(result.Changed,
			"fix the destination and wait until the backlog shrinks, or increase the limit, then repeat")
	}
	return result, err
}

func dropDeadLetters(
	s Sinks, r *http.Request, request adminapi.ChangeDeadLettersRequest,
) (adminapi.ChangeDeadLettersResult, error) {
	return changeDeadLetters(r, "dropped", request, s.DropDeadLetters, s.DropSelectedDeadLetters)
}

func newSelection(f adminapi.DeadLetterFilter, p adminapi.PageRequest, now time.Time) (store.Selection, error) {
	sel := store.Selection{Topics: splitTopics(f.Topics), Hub: f.HubID, After: p.After, Limit: p.Limit}
	var err error
	sel.Since, err = parseTimeParameter("since", f.Since, now)
	return sel, err
}

// changeDeadLetters changes the selected dead letters with one of two functions, and records the selection. pastTense is
// the verb of the change.
func changeDeadLetters(
	r *http.Request, pastTense string, request adminapi.ChangeDeadLettersRequest,
	changeIDs func(ctx context.Context, sink string, ids []string) (store.ChangeResult, error),
	changeAll func(ctx context.Context, sink string, sel store.Selection) (store.ChangeResult, error),
) (adminapi.ChangeDeadLettersResult, error) {
	if err := checkSelection(&request); err != nil {
		return adminapi.ChangeDeadLettersResult{}, err
	}
	sel, err := newSelection(request.DeadLetterFilter, request.PageRequest, time.Now())
	if err != nil {
		return adminapi.ChangeDeadLettersResult{}, err
	}
	var done store.ChangeResult
	if sink := r.PathValue("name"); request.All {
		done, err = changeAll(r.Context(), sink, sel)
	} else {
		done, err = changeIDs(r.Context(), sink, request.IDs)
	}
	selection, _ := json.Marshal(request) // strings and numbers always marshal
	*auditDetail(r) = fmt.Sprintf("%d %s, %d unchanged: %s", done.Done, pastTense, len(done.Unchanged), selection)
	result := adminapi.ChangeDeadLettersResult{ChangeResult: adminapi.NewChangeResult(done.Done), Next: done.Next}
	for _, u := range done.Unchanged {
		result.Unchanged = append(result.Unchanged, adminapi.Unchanged{ID: u.ID, Reason: string(u.Status)})
	}
	return result, describePartialChange(err, done.Done, pastTense)
}

// checkSelection returns an error unless the request selects dead letters either by IDs or by all and a filter.
func checkSelection(request *adminapi.ChangeDeadLettersRequest) error {
	hasFilter := len(request.Topics) > 0 || request.HubID != "" || request.Since != "" ||
		request.PageRequest != adminapi.PageRequest{}
	switch {
	case request.Limit < 0:
		return relay.NewError(relay.CodeInvalidArgument, "limit is negative").WithPointer("/limit")
	case request.All && request.IDs != nil:
		return relay.NewError(relay.CodeInvalidArgument, "set either ids or all").WithPointer("/ids")
	case request.All:
		return nil
	case len(request.IDs) == 0:
		return relay.NewError(relay.CodeMissingArgument,
			`name the dead letters in ids, or set "all": true`).WithPointer("/ids")
	case hasFilter:
		return relay.NewError(relay.CodeInvalidArgument, "filters require all instead of ids")
	}
	return nil
}
