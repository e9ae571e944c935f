package adminserver

import (
	"context"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

// AuditLog searches the audit log. It may be used concurrently.
type AuditLog interface {
	Search(ctx context.Context, f audit.Filter) ([]audit.Entry, error)
}

// maxAuditEntries is the maximum number of entries in a response.
const maxAuditEntries = 10_000

func (o *apiHandler) handleAudit(pattern string, log func() AuditLog) {
	if log == nil {
		return
	}
	o.handle(pattern, maxRequest, adminapi.RoleViewer, func(r *http.Request) (int, any, error) {
		l := log()
		if l == nil {
			return 0, nil, errStarting()
		}
		query, refused := httpserver.ParseQuery(r, "actor", "source", "target", "action", "since", "limit")
		if refused != nil {
			return 0, nil, refused
		}
		f := audit.Filter{
			Actor: query.Get("actor"), Source: query.Get("source"), Target: query.Get("target"),
			Action: query.Get("action"),
		}
		var err error
		if f.Limit, err = pageLimit(query, maxAuditEntries); err != nil {
			return 0, nil, err
		}
		if since := query.Get("since"); since != "" {
			var ok bool
			if f.Since, ok = parseTime(since, time.Now()); !ok {
				return 0, nil, errSince()
			}
		}
		list, err := l.Search(r.Context(), f)
		return http.StatusOK, list, err
	}, http.MethodGet, http.MethodHead)
}

// record records a request of an operator.
func (o *apiHandler) record(r *http.Request, pattern, outcome string) {
	var targets []string
	for _, name := range []string{"name", "id"} {
		if value := r.PathValue(name); value != "" {
			targets = append(targets, value)
		}
	}
	o.audit.Record(audit.Entry{
		Actor: "admin " + callerFrom(r).Name, Source: remoteAddr(r), Action: actionOf(r.Method, pattern),
		Target: strings.Join(targets, "/"), Outcome: outcome, Detail: *auditDetail(r),
	})
}

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

// actionOf names an action by its path without parameters, such as "sinks.pause". A method that is part of the meaning
// is appended.
func actionOf(method, pattern string) audit.Action {
	var parts []string
	for part := range strings.SplitSeq(strings.TrimPrefix(pattern, "/api/"), "/") {
		if !strings.HasPrefix(part, "{") {
			parts = append(parts, part)
		}
	}
	if len(parts) == 1 {
		parts = append(parts, strings.ToLower(method))
	}
	return audit.Action(strings.Join(parts, "."))
}

// remoteAddr returns the address of the client, or "" for a unix socket.
func remoteAddr(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return peer.Addr().Unmap().String()
}

// countAuthFailure records a failed authentication. It returns rejected, or 429.rate-limiting if the client has failed
// too often. Those are not recorded.
func (a *Admin) countAuthFailure(w http.ResponseWriter, r *http.Request, rejected *relay.Error) *relay.Error {
	peer, _ := netip.ParseAddr(remoteAddr(r)) // invalid for a unix socket
	if wait := a.failures.Fail(peer); wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		return relay.NewError(relay.CodeRateLimiting,
			"too many requests from this address had invalid credentials; correct them, then try again")
	}
	a.opt.Audit.Record(audit.Entry{
		Source: remoteAddr(r), Action: audit.ActionAdminAuthenticate, Target: r.Method + " " + r.URL.Path,
		Outcome: string(rejected.Code),
	})
	return rejected
}
