package publicapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/clients/transport"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

// maxPatterns is the maximum number of patterns of one client. Each pattern costs memory, and time for each new topic.
const maxPatterns = 128

// maxWildcards is the maximum number of * in all patterns of one client. Each costs memory and time, too.
const maxWildcards = 2 * maxPatterns

// streamRequest contains the unchecked stream parameters of a GET request.
type streamRequest struct {
	upgrade bool     // Upgrade: websocket
	events  bool     // Accept: text/event-stream
	tokens  []string // the tokens in the query and the header
	topics  []string
	cursor  string // the parameter that requests a cursor in each message
	after   string // the cursor after which to resume

	metadata string // the parameter that requests ID and time in each message
}

// wantsSSE reports whether an event stream is requested. A request for a websocket has precedence.
func (s *streamRequest) wantsSSE() bool { return s.events && !s.upgrade }

func (s *streamRequest) isStream() bool { return s.upgrade || s.events || len(s.tokens) > 0 }

func parseStream(r *http.Request) (*streamRequest, *relay.Error) {
	s := &streamRequest{
		upgrade: transport.IsUpgrade(r),
		events:  strings.Contains(strings.ToLower(r.Header.Get("Accept")), "text/event-stream"),
	}
	query, err := httpserver.ParseQuery(r, httpserver.QueryNames{
		Single: []string{"cursor", "after", "metadata"}, Repeated: []string{"token", "topics"}, IgnoreOthers: true,
	})
	if err != nil {
		return nil, err
	}
	s.tokens = query["token"]
	s.addParameters(query)
	s.tokens = append(s.tokens[:len(s.tokens):len(s.tokens)], r.Header["X-Service-Token"]...)
	// A browser reconnects with the same URL and sends its position in Last-Event-ID.
	if id := r.Header.Get("Last-Event-ID"); id != "" && s.wantsSSE() {
		s.after = id
	}
	return s, nil
}

// addParameters sets the stream parameters that are not set yet.
func (s *streamRequest) addParameters(query url.Values) {
	s.cursor = cmp.Or(s.cursor, query.Get("cursor"))
	s.after = cmp.Or(s.after, query.Get("after"))
	s.metadata = cmp.Or(s.metadata, query.Get("metadata"))
	if len(s.topics) > 0 {
		return
	}
	for _, list := range query["topics"] {
		if list = strings.TrimSpace(list); list != "" {
			s.topics = append(s.topics, strings.Split(list, ",")...)
		}
	}
}

// encodeParameters returns the stream parameters as a query, or an empty string without any.
func (s *streamRequest) encodeParameters() string {
	query := url.Values{}
	for name, value := range map[string]string{
		"topics": strings.Join(s.topics, ","), "cursor": s.cursor, "after": s.after, "metadata": s.metadata,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query.Encode()
}

// parseParameters returns a subscription with the stream parameters. The hub checks After when the stream opens.
func (a *API) parseParameters(req *streamRequest) (s clients.Subscription, err *relay.Error) {
	s.After = req.after
	if s.Topics, err = a.parsePatterns(req.topics); err != nil {
		return s, err
	}
	if s.Cursor, err = req.wantsCursors(); err != nil {
		return s, err
	}
	s.Metadata, err = req.wantsMetadata()
	return s, err
}

// upgradeRequired rejects a request for neither a websocket nor an event stream.
func (s *streamRequest) upgradeRequired(r *http.Request) *relay.Error {
	reason := ""
	switch {
	case s.wantsSSE():
		return nil
	case r.ProtoMajor != 1 || r.ProtoMinor < 1:
		reason = "the stream is a websocket, which is opened over HTTP/1.1; this request came over " + r.Proto +
			"; an event stream (Accept: text/event-stream) needs no upgrade"
	case s.upgrade:
		return nil
	default:
		reason = "a token opens the stream: use a websocket client, which sends Connection: Upgrade and " +
			"Upgrade: websocket, or send Accept: text/event-stream; a proxy in between must pass these headers on"
	}
	return relay.NewError(relay.CodeUpgradeRequired, reason)
}

// singleToken returns the presented token without white space. It rejects requests without a token or with different
// tokens.
func (s *streamRequest) singleToken() (string, *relay.Error) {
	token := ""
	for _, presented := range s.tokens {
		clean := auth.CleanToken(presented)
		if token != "" && clean != "" && clean != token {
			return "", relay.NewError(relay.CodeAuthInvalid, "the request presents two different tokens")
		}
		if clean != "" {
			token = clean
		}
	}
	if token == "" && s.wantsSSE() {
		return "", relay.NewError(relay.CodeAuthInvalid,
			"an event stream needs an API key in Authorization, or a token in token= or x-service-token")
	}
	if token == "" {
		return "", relay.NewError(relay.CodeAuthInvalid,
			"a stream needs a token, in token= or x-service-token; GET this path with an API key for one")
	}
	return token, nil
}

// wantsCursors reports whether messages contain cursors. The parameter after implies it, because a client that resumes
// once will resume again. Events of an event stream always have an ID.
func (s *streamRequest) wantsCursors() (bool, *relay.Error) {
	switch s.cursor {
	case "":
		return s.after != "" && !s.wantsSSE(), nil
	case "true":
		return true, nil
	case "false":
		if s.after == "" || s.wantsSSE() {
			return false, nil
		}
		return false, relay.NewError(
			relay.CodeInvalidArgument,
			"with the parameter after, each message has a cursor: remove cursor=false",
		).WithExtra("parameter", "cursor")
	default:
		return false, relay.NewError(relay.CodeInvalidArgument,
			"the parameter cursor is true or false").WithExtra("parameter", "cursor")
	}
}

// wantsMetadata reports whether messages contain the ID and the time of the notification.
func (s *streamRequest) wantsMetadata() (bool, *relay.Error) {
	switch s.metadata {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, relay.NewError(relay.CodeInvalidArgument,
			"the parameter metadata is true or false").WithExtra("parameter", "metadata")
	}
}

// openStream opens a stream. It checks in this order: upgrade, presence of a token, handshake, credentials, origin,
// arguments. The hub consumes the token last.
func (a *API) openStream(w http.ResponseWriter, r *http.Request, req *streamRequest) *relay.Error {
	if err := req.upgradeRequired(r); err != nil {
		return err
	}
	grant, token, err := a.authorizeStream(w, r, req)
	if err != nil {
		return err
	}
	if err := a.origins.checkUpgrade(r); err != nil {
		a.originLog.Do(func() {
			a.opt.Log.Info("origin rejected, see server.allowed_origins",
				"origin", relay.Truncate(r.Header.Get("Origin"), 200), "key_name", grant.KeyName)
		})
		return err
	}
	if stored, err := url.ParseQuery(grant.Stream); err == nil {
		req.addParameters(stored)
	}
	s, err := a.parseParameters(req)
	if err != nil {
		if req.wantsSSE() {
			return err
		}
		return cmp.Or(a.takeReopening(w, token), err) // the token stays valid
	}
	s.Hub, s.Account, s.Hubs, s.Key = grant.Hub, grant.Account, grant.Hubs, grant.KeyName
	s.Allows, s.VisibilityKey = grant.Allows, grant.VisibilityKey()
	s.CheckKey = func() clients.Authorization { return a.keyStatus(&grant) }
	if req.wantsSSE() {
		if token != "" {
			a.keepTokenAlive(r, token, &s)
		}
		httpserver.BeginStream(r)
		return a.opt.Streams.ServeEvents(httpserver.UnwrapHijack(w), r, s)
	}
	s.Admit = func(ctx context.Context, _ func()) *relay.Error {
		if _, err := a.opt.Tokens.Consume(ctx, token); err != nil {
			return a.tokenError(r, err)
		}
		return nil
	}
	return a.opt.Streams.ServeWebSocket(httpserver.UnwrapHijack(w), r, s)
}

// keyStatus compares the current grant of the key with the grant of the open stream.
func (a *API) keyStatus(opened *auth.Grant) clients.Authorization {
	current, err := a.opt.Authenticator.CurrentGrant(*opened)
	if err != nil {
		return clients.Authorization{Refused: err}
	}
	return clients.Authorization{ScopeChanged: !current.SameVisibility(opened), Expires: current.Expires}
}

// authorizeStream returns the grant of the token. An event stream may also present an API key. The token is then empty.
func (a *API) authorizeStream(
	w http.ResponseWriter, r *http.Request, req *streamRequest,
) (auth.Grant, string, *relay.Error) {
	if req.wantsSSE() && len(req.tokens) == 0 && hasCredentials(r) {
		key, hub, err := a.requestedStream(r)
		if err == nil {
			err = a.takeRequest(w, r, key)
		}
		if err != nil {
			return auth.Grant{}, "", err
		}
		return key.Grant(hub), "", nil
	}
	token, err := req.singleToken()
	if err != nil {
		return auth.Grant{}, "", err
	}
	if !req.wantsSSE() {
		if err := transport.CheckHandshake(w, r); err != nil {
			return auth.Grant{}, "", err
		}
	}
	grant, err := a.checkToken(r, token)
	if err == nil && req.wantsSSE() {
		err = a.takeReopening(w, token)
	}
	return grant, token, err
}

// hasCredentials reports whether a request identifies a key.
func hasCredentials(r *http.Request) bool {
	return len(r.Header["Authorization"]) > 0 || r.TLS != nil && len(r.TLS.VerifiedChains) > 0
}

// keepTokenAlive keeps the token of an event stream alive while the stream is open, because the client reconnects with
// the same token. The stream ends when it loses the token.
func (a *API) keepTokenAlive(r *http.Request, token string, s *clients.Subscription) {
	var current atomic.Pointer[auth.Hold]
	s.Admit = func(ctx context.Context, recheck func()) *relay.Error {
		hold, err := a.opt.Tokens.KeepAlive(ctx, token, recheck)
		if err != nil {
			return a.tokenError(r, err)
		}
		current.Store(hold)
		if hold.State() != auth.HoldActive {
			recheck() // an earlier call did not see the hold
		}
		return nil
	}
	s.OnGone = func() { current.Load().Release() }
	checkKey := s.CheckKey
	s.CheckKey = func() clients.Authorization {
		found := checkKey()
		if hold := current.Load(); hold != nil {
			found.TokenEnded = tokenEndReasons[hold.State()]
			if found.Expires.IsZero() || hold.Deadline().Before(found.Expires) {
				found.Expires = hold.Deadline()
			}
		}
		return found
	}
}

// tokenEndReasons tell a client why its event stream ends.
var tokenEndReasons = map[auth.HoldState]string{
	auth.HoldReplaced: "another stream was opened with this token",
	auth.HoldRevoked:  "the token was revoked or used for a websocket",
	auth.HoldExpired:  "the token is too old; ask for another",
}

// checkToken returns the grant of the token without consuming it, and compares it with the other credentials of the
// request.
func (a *API) checkToken(r *http.Request, token string) (auth.Grant, *relay.Error) {
	var key *auth.Key
	if len(r.Header["Authorization"]) > 0 {
		var err *relay.Error
		if key, err = a.authenticate(r); err != nil {
			return auth.Grant{}, err
		}
	}
	id, given, err := hubID(r)
	if err != nil {
		return auth.Grant{}, err
	}
	grant, getErr := a.opt.Tokens.Get(r.Context(), token)
	if getErr != nil {
		return auth.Grant{}, a.tokenError(r, getErr)
	}
	if grant, err = a.opt.Authenticator.CurrentGrant(grant); err != nil {
		return auth.Grant{}, err
	}
	if given && id != grant.Hub {
		return auth.Grant{}, relay.NewError(relay.CodeWrongHub,
			"the token was issued for another stream than the one of the header X-Hub-Id")
	}
	if key == nil {
		return grant, nil
	}
	if grant.Hub != "" {
		return grant, key.RequireHub(grant.Hub)
	}
	if key.AccountID != grant.Account && key.AccountID != auth.Wildcard {
		return grant, relay.NewError(relay.CodeWrongHub,
			"the token is for the stream of another account than the key's")
	}
	return grant, nil
}

func (a *API) parsePatterns(list []string) (relay.Patterns, *relay.Error) {
	if len(list) > maxPatterns {
		return relay.Patterns{}, httpserver.NewTopicsError(
			fmt.Sprintf("the parameter topics has %d patterns, at most %d are allowed", len(list), maxPatterns))
	}
	wildcards := 0
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
		wildcards += strings.Count(list[i], "*")
	}
	if wildcards > maxWildcards {
		return relay.Patterns{}, httpserver.NewTopicsError(
			fmt.Sprintf("the parameter topics contains %d *, at most %d are allowed", wildcards, maxWildcards))
	}
	return httpserver.ParseTopics(a.opt.Catalog, list)
}
