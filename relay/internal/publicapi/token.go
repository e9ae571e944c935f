package publicapi

import (
	"errors"
	"net/http"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

// serveNotifications answers GET: a stream where one is asked for, else a token.
func (a *API) serveNotifications(w http.ResponseWriter, r *http.Request) *relay.Error {
	req, err := parseStream(r)
	if err != nil {
		return err
	}
	if req.isStream() {
		return a.openStream(w, r, req)
	}
	return a.issueToken(w, r)
}

// headerInstance names this relay.
const headerInstance = "Hubrelay-Instance"

// issueToken issues a token. HEAD goes through the same checks and issues none.
func (a *API) issueToken(w http.ResponseWriter, r *http.Request) *relay.Error {
	key, id, refused := a.requestedPipeline(r)
	if refused != nil {
		return refused
	}
	if r.Method == http.MethodHead {
		httpserver.WriteJSON(w, http.StatusOK, nil)
		return nil
	}
	token, err := a.opt.Tokens.Issue(r.Context(), key.Grant(id))
	if err != nil {
		return a.tokenError(r, err)
	}
	if a.opt.Instance != "" {
		w.Header().Set(headerInstance, a.opt.Instance)
	}
	if link := a.streamURL(r); link != "" {
		w.Header().Set("Link", "<"+link+"?token="+token+`>; rel="notifications"`)
	}
	httpserver.WriteJSON(w, http.StatusOK, []byte(`{"data":{"token":"`+token+`"}}`))
	return nil
}

// requestedPipeline returns the key that the request presents and the hub whose pipeline it asks for; empty for the account's.
func (a *API) requestedPipeline(r *http.Request) (*auth.Key, string, *relay.Error) {
	key, refused := a.authenticate(r)
	if refused != nil {
		return nil, "", refused
	}
	id, given, refused := hubID(r)
	if refused != nil {
		return nil, "", refused
	}
	if given {
		if refused := key.RequireHub(id); refused != nil {
			return nil, "", refused
		}
	}
	return key, id, nil
}

// streamURL is the websocket's address without its token, empty where neither configuration nor request name a host.
func (a *API) streamURL(r *http.Request) string {
	switch {
	case a.publicURL != nil:
		return strings.Replace(a.publicURL.String(), "http", "ws", 1) + pathNotifications
	case r.Host == "" || strings.ContainsAny(r.Host, `<>"`): // an absolute request line may name such a host
		return ""
	case r.TLS != nil:
		return "wss://" + r.Host + pathNotifications
	default:
		return "ws://" + r.Host + pathNotifications
	}
}

func (a *API) tokenError(r *http.Request, err error) *relay.Error {
	switch {
	case errors.Is(err, auth.ErrTokenUnknown):
		return relay.NewError(relay.CodeAuthInvalid,
			"the token is not known, has expired or was used already; ask for another")
	case errors.Is(err, auth.ErrKeyExpired):
		return relay.NewError(relay.CodeAuthExpired, "the API key has expired")
	case errors.Is(err, auth.ErrUnavailable):
		a.logUnavailable(r, err)
		return relay.NewError(relay.CodeNotReady, "the relay cannot reach its store right now; try again in a moment")
	default:
		return a.publicError(r, err)
	}
}
