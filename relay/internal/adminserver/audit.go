package adminserver

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
)

// AuditLog searches the audit log. It may be used concurrently.
type AuditLog interface {
	Search(ctx context.Context, f audit.Filter) (list []audit.Entry, next string, err error)
}

// The numbers of entries in a response.
const (
	defaultAuditEntries = 100
	maxAuditEntries     = 1000
)

func searchAuditLog(
	l AuditLog, r *http.Request, request adminapi.ListAuditRequest,
) (page adminapi.Page[adminapi.AuditEntry], err error) {
	if request.Limit > maxAuditEntries {
		return page, relay.NewError(relay.CodeInvalidArgument,
			fmt.Sprintf("limit is not a number from 1 to %d", maxAuditEntries)).WithExtra("parameter", "limit")
	}
	if err := checkAction(request.Action); err != nil {
		return page, err
	}
	if request.After != "" && !streamid.IsValid(request.After) {
		return page, newCursorError()
	}
	f := audit.Filter{
		Actor: request.Actor, AccountID: request.AccountID, Address: request.Address, Target: request.Target,
		Action: request.Action, After: request.After, Limit: cmp.Or(request.Limit, defaultAuditEntries),
	}
	if f.Since, err = parseTimeParameter("since", request.Since, time.Now()); err != nil {
		return page, err
	}
	entries, next, err := l.Search(r.Context(), f)
	page.Data, page.Next = make([]adminapi.AuditEntry, len(entries)), next
	for i, e := range entries {
		page.Data[i] = adminapi.AuditEntry{
			ID: e.ID, Time: e.Time, Actor: e.Actor, AccountID: e.AccountID, Address: e.Address, Action: string(e.Action),
			Target: e.Target, Result: e.Result, Detail: e.Detail, Repeated: e.Repeated,
		}
	}
	return page, err
}

// checkAction rejects the name of an unknown action. An empty name is allowed.
func checkAction(name string) error {
	if name == "" {
		return nil
	}
	var known, groups []string
	add := func(action string) {
		group, _, _ := strings.Cut(action, ".")
		known, groups = append(known, action, group), append(groups, group)
	}
	for _, a := range audit.Actions() {
		add(string(a))
	}
	for _, op := range adminapi.Operations() {
		// Reads are recorded only if they are denied, which a read for viewers never is.
		if d := op.Describe(); d.Method != http.MethodGet || d.Role != adminapi.RoleViewer {
			add(d.Name)
		}
	}
	if slices.Contains(known, name) {
		return nil
	}
	detail := "there is no action " + strconv.Quote(relay.Truncate(name, 100))
	if near := suggest.ClosestName(name, known); near != "" {
		detail += "; did you mean " + near + "?"
	} else {
		slices.Sort(groups)
		detail += "; the actions start with " + strings.Join(slices.Compact(groups), ", ")
	}
	return relay.NewError(relay.CodeInvalidArgument, detail).WithExtra("parameter", "action")
}

// recordRequest records a request of an operator.
func (h *apiHandler) recordRequest(r *http.Request, op adminapi.Description, result string) {
	var targets []string
	for _, name := range op.ParameterNames() {
		targets = append(targets, r.PathValue(name))
	}
	h.audit.Record(audit.Entry{
		Actor: actorOf(r), Address: remoteAddr(r), Action: audit.Action(op.Name),
		Target: strings.Join(targets, "/"), Result: result, Detail: *auditDetail(r),
	})
}

// actorOf returns the caller as it is in the audit log.
func actorOf(r *http.Request) string { return "admin " + callerFrom(r).Name }

type detailKey struct{}

// auditDetail returns where a handler stores the detail of its entry in the audit log.
func auditDetail(r *http.Request) *string {
	if detail, ok := r.Context().Value(detailKey{}).(*string); ok {
		return detail
	}
	return new(string)
}

func withAuditDetail(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), detailKey{}, new(string)))
}

// remoteAddr returns the address of the client, or "" for a unix socket.
func remoteAddr(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return peer.Addr().Unmap().String()
}

// countAuthFailure records a failed authentication. It returns err, or 429.rate-limiting if the client has failed
// too often. Those are not recorded.
func (a *Admin) countAuthFailure(w http.ResponseWriter, r *http.Request, err *relay.Error) *relay.Error {
	peer, _ := netip.ParseAddr(remoteAddr(r)) // invalid for a unix socket
	if wait := a.failures.Fail(peer); wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		return relay.NewError(relay.CodeRateLimiting,
			"too many requests from this address had invalid credentials; correct them, then try again")
	}
	a.opt.Audit.Record(audit.Entry{
		Address: remoteAddr(r), Action: audit.ActionAdminAuthenticate, Target: r.Method + " " + r.URL.Path,
		Result: string(err.Code),
	})
	return err
}
