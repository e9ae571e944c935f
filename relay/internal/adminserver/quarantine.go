package adminserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
)

// The numbers of entries of the quarantine in a page and in a request.
const (
	defaultQuarantinePage = 100
	maxQuarantinePage     = 500
	maxQuarantineIDs      = 1000
)

// Quarantine has the invalid entries of the inbox and of sources. Its methods may be called concurrently and honor ctx.
// An error is inbox.ErrNotQuarantined, a *relay.Error, or means that Redis is unreachable.
type Quarantine interface {
	ListQuarantine(ctx context.Context, after string, limit int) ([]inbox.QuarantinedEntry, error)
	GetQuarantined(ctx context.Context, id string) (inbox.QuarantinedEntry, error)
	Replay(ctx context.Context, id string, data []byte) (relay.Notification, error)
	DropQuarantined(ctx context.Context, ids []string) (missing []string, err error)
}

func (h *apiHandler) handleQuarantine(q Quarantine, searches searchSlots) {
	handleOperation(h, adminapi.ListQuarantine(), withLimit(searches, withComponent(q, listQuarantine)))
	handleOperation(h, adminapi.ShowQuarantined(), withComponent(q, showQuarantined))
	handleOperation(h, adminapi.ReplayQuarantined(), withComponent(q, replayQuarantined))
	handleOperation(h, adminapi.DropQuarantined(), withComponent(q, dropQuarantined))
}

func newQuarantinedEntry(e inbox.QuarantinedEntry) adminapi.QuarantinedEntry {
	return adminapi.QuarantinedEntry{
		ID: e.ID, Time: e.Time, Reason: e.Reason, InboxID: e.InboxID, Source: e.Source,
		IdempotencyKey: e.Key, Size: e.Size,
	}
}

func listQuarantine(
	q Quarantine, r *http.Request, request adminapi.PageRequest,
) (page adminapi.Page[adminapi.QuarantinedEntry], err error) {
	if request.After != "" && !streamid.IsValid(request.After) {
		return page, newCursorError()
	}
	limit := min(cmp.Or(request.Limit, defaultQuarantinePage), maxQuarantinePage)
	list, err := q.ListQuarantine(r.Context(), request.After, limit)
	if err != nil {
		return page, err
	}
	for _, e := range list {
		page.Data = append(page.Data, newQuarantinedEntry(e))
	}
	if len(list) == limit {
		page.Next = list[len(list)-1].ID
	}
	return page, nil
}

func showQuarantined(q Quarantine, r *http.Request, _ adminapi.Empty) (adminapi.QuarantinedEntryDetails, error) {
	e, err := q.GetQuarantined(r.Context(), r.PathValue("id"))
	if err != nil {
		return adminapi.QuarantinedEntryDetails{}, quarantineError(r, err)
	}
	return adminapi.QuarantinedEntryDetails{
		QuarantinedEntry: newQuarantinedEntry(e), Data: strings.ToValidUTF8(string(e.Data), "\uFFFD"),
	}, nil
}

func replayQuarantined(
	q Quarantine, r *http.Request, request adminapi.ReplayQuarantinedRequest,
) (adminapi.ReplayedEntry, error) {
	id := r.PathValue("id")
	n, err := q.Replay(r.Context(), id, []byte(request.Data))
	if err != nil {
		return adminapi.ReplayedEntry{}, quarantineError(r, err)
	}
	content := "unchanged"
	if request.Data != "" {
		content = "with other content"
	}
	*auditDetail(r) = fmt.Sprintf("%s, topic %s, hub %s", content, n.Topic, n.Hub)
	return adminapi.ReplayedEntry{ID: id, Topic: n.Topic, HubID: n.Hub}, nil
}

func dropQuarantined(
	q Quarantine, r *http.Request, request adminapi.DropQuarantinedRequest,
) (adminapi.ChangeResult, error) {
	if len(request.IDs) == 0 || len(request.IDs) > maxQuarantineIDs {
		return adminapi.ChangeResult{}, relay.NewError(relay.CodeInvalidArgument,
			fmt.Sprintf("ids must contain 1 to %d IDs", maxQuarantineIDs)).WithPointer("/ids")
	}
	slices.Sort(request.IDs)
	ids := slices.Compact(request.IDs)
	missing, err := q.DropQuarantined(r.Context(), ids)
	result := adminapi.NewChangeResult(len(ids) - len(missing))
	dropped := strconv.Itoa(result.Changed)
	if err != nil {
		dropped = "up to " + dropped
	}
	*auditDetail(r) = fmt.Sprintf("%s of %d dropped, from %s to %s", dropped, len(ids), relay.Truncate(ids[0], 50),
		relay.Truncate(ids[len(ids)-1], 50))
	if err != nil {
		return adminapi.ChangeResult{}, err
	}
	for _, id := range missing {
		result.Unchanged = append(result.Unchanged, adminapi.Unchanged{ID: id, Reason: adminapi.UnchangedMissing})
	}
	return result, nil
}

func quarantineError(r *http.Request, err error) error {
	if errors.Is(err, inbox.ErrNotQuarantined) {
		return relay.NewError(relay.CodeNotQuarantined, "the quarantine has no entry "+
			strconv.Quote(relay.Truncate(r.PathValue("id"), 100))+"; GET /api/quarantine lists all entries")
	}
	return err
}
