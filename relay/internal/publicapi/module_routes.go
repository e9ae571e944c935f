package publicapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/module"
)

// addModuleRoute adds a method to the route of a pattern.
func (a *API) addModuleRoute(m module.PublicRoute) {
	methods := []string{m.Method}
	if m.Method == http.MethodGet {
		methods = append(methods, http.MethodHead)
	}
	for i := range a.paramRoutes {
		if a.paramRoutes[i].pattern == m.Pattern {
			a.paramRoutes[i] = a.paramRoutes[i].handle(a.moduleHandler(m), methods...)
			return
		}
	}
	rt := newRoute(a.moduleHandler(m), methods...)
	rt.pattern = m.Pattern
	a.paramRoutes = append(a.paramRoutes, rt)
}

// requestBytes is about the number of bytes that a module stores for a request, such as a job.
const requestBytes = 2 << 10

// moduleHandler authorizes a request before it reads the body and calls the module.
func (a *API) moduleHandler(m module.PublicRoute) handler {
	return func(w http.ResponseWriter, r *http.Request, params []string) (err *relay.Error) {
		key, hub, err := a.authorize(r, m.Capability, m.HubPurpose)
		if key != nil && m.AuditAction != "" {
			defer func() { a.recordAction(r, newEntry(key, m.AuditAction, strings.Join(params, "/")), err) }()
		}
		if err != nil {
			return err
		}
		if err := a.takeRequest(w, r, key); err != nil {
			return err
		}
		if err := m.CheckReady(); err != nil {
			return err
		}
		request := module.PublicRequest{Caller: newCaller(key, hub), Params: params}
		if m.Method == http.MethodPost {
			if err := a.opt.TakeRoom(key.Owner(), requestBytes); err != nil {
				return a.publicError(r, err)
			}
			if request.IdempotencyKey, err = idempotencyKey(r); err != nil {
				return err
			}
			b, done, err := a.readBody(w, r, key, min(m.MaxBody, a.opt.MaxBody))
			if err != nil {
				return err
			}
			defer done()
			request.ContentType, request.Body = r.Header.Get("Content-Type"), b.buf
		}
		data, handleErr := m.Handle(r.Context(), request)
		return a.writeData(w, r, m.Status, data, handleErr)
	}
}

func newCaller(key *auth.Key, hub string) module.Caller {
	grant := key.Grant(hub)
	sees := func(account string) bool { return grant.Allows(hub, account) }
	return module.Caller{KeyName: key.Name, Account: key.AccountID, Hub: hub, Sees: sees}
}

// writeData writes data in a response, or returns the public form of err.
func (a *API) writeData(w http.ResponseWriter, r *http.Request, status int, data any, err error) *relay.Error {
	if err != nil {
		return a.publicError(r, err)
	}
	text, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return a.publicError(r, err)
	}
	httpserver.WriteJSON(w, status, append(text, '\n'))
	return nil
}

// matchPattern reports whether a path matches a pattern, and returns the values of the parameters. An escaped slash
// (%2F) belongs to a value, because IDs may contain slashes.
func matchPattern(pattern, escaped string) ([]string, bool) {
	want, got := strings.Split(pattern, "/"), strings.Split(escaped, "/")
	if len(want) != len(got) {
		return nil, false
	}
	var params []string
	for i := range want {
		if !strings.HasPrefix(want[i], "{") {
			if want[i] != got[i] {
				return nil, false
			}
			continue
		}
		value, err := url.PathUnescape(got[i])
		if err != nil || value == "" {
			return nil, false
		}
		params = append(params, value)
	}
	return params, true
}
