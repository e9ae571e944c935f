package publicapi

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

// serveNotifications handles GET. It opens a stream if one is requested, and issues a token otherwise.
func (a *API) serveNotifications(w http.ResponseWriter, r *http.Request) *relay.Error {
	req, err := parseStream(r)
	if err != nil {
		return err
	}
	if req.isStream() {
		return a.openStream(w, r, req)
	}
	return a.issueToken(w, r, req)
}

// maxParameters is the maximum length of the stream parameters that a token keeps, in bytes.
const maxParameters = 2048

// issueToken issues a token. HEAD makes the same checks and issues no token. The stream parameters of the request apply to
// the stream that the token opens, unless that request has them.
func (a *API) issueToken(w http.ResponseWriter, r *http.Request, req *streamRequest) *relay.Error {
	key, id, err := a.requestedStream(r)
	if err != nil {
		return err
	}
	// A rejected request counts too, because patterns take time to parse.
	if err := a.takeRequest(w, r, key); err != nil {
		return err
	}
	if _, err := a.parseParameters(req); err != nil {
		return err
	}
	grant := key.Grant(id)
	if grant.Stream = req.encodeParameters(); len(grant.Stream) > maxParameters {
		return relay.NewError(relay.CodeInvalidArgument, "the stream parameters are longer than "+
			strconv.Itoa(maxParameters)+" bytes; send them when you open the stream")
	}
	if r.Method == http.MethodHead {
		httpserver.WriteJSON(w, http.StatusOK, nil)
		return nil
	}
	token, issueErr := a.opt.Tokens.Issue(r.Context(), grant, func(bytes int64) error {
		return a.opt.TakeRoom(key.Owner(), bytes)
	})
	if issueErr != nil {
		return a.tokenError(r, issueErr)
	}
	if a.opt.RelayID != "" {
		w.Header().Set(relay.IDHeader, a.opt.RelayID)
	}
	if link := a.streamURL(r); link != "" {
		w.Header().Set("Link", "<"+link+"?token="+token+`>; rel="notifications"`)
	}
	httpserver.WriteJSON(w, http.StatusOK, []byte(`{"data":{"token":"`+token+`"}}`))
	return nil
}

// revokeToken consumes a token, which ends its event stream. Whoever has the token may do so. The quota of token
// requests also bounds the revocations, and unknown tokens count as failed authentications.
func (a *API) revokeToken(w http.ResponseWriter, r *http.Request) *relay.Error {
	req, err := parseStream(r)
	if err != nil {
		return err
	}
	token, err := req.singleToken()
	if err != nil {
		return err
	}
	grant, consumeErr := a.opt.Tokens.Consume(r.Context(), token)
	if consumeErr != nil {
		return a.tokenError(r, consumeErr)
	}
	a.recordAction(r, audit.Entry{
		Actor: keyActor(grant.KeyName), AccountID: grant.Account, Owner: grant.Owner(), Action: audit.ActionRevokeToken,
	}, nil)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// requestedStream returns the key of a request and the hub of the requested stream. The hub is empty for the
// account stream.
func (a *API) requestedStream(r *http.Request) (*auth.Key, string, *relay.Error) {
	key, err := a.authenticate(r)
	if err != nil {
		return nil, "", err
	}
	id, given, err := hubID(r)
	if err != nil {
		return nil, "", err
	}
	if given {
		if err := key.RequireHub(id); err != nil {
			return nil, "", err
		}
	}
	return key, id, nil
}

// streamURL returns the URL of the websocket without a token. It is empty if neither the configuration nor the request
// contains a host.
func (a *API) streamURL(r *http.Request) string {
	switch {
	case a.publicURL != nil:
		return strings.Replace(a.publicURL.String(), "http", "ws", 1) + pathNotifications
	case r.Host == "" || strings.ContainsAny(r.Host, `<>"`): // possible in an absolute request line
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
	case errors.Is(err, auth.ErrTooManyHeld):
		return relay.NewError(relay.CodeStorageFull, "the tokens of the open event streams of this account or key use their share "+
			"of the storage; use fewer streams or shorter parameters, or open event streams with the API key")
	case errors.Is(err, auth.ErrUnavailable):
		return a.storeError(r, err)
	default:
		return a.publicError(r, err)
	}
}
