package adminserver

import (
	"crypto/rand"
	"crypto/sha256"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

const (
	// sessionLifetime is the time after which an operator signs in again.
	sessionLifetime = 12 * time.Hour
	// sessionIdleTime ends a session without requests. An open console sends some.
	sessionIdleTime = time.Hour
	// maxTokenSessions is the maximum number of sessions of a token. A new one ends the one that was unused for the longest
	// time.
	maxTokenSessions = 20
	// maxSignIn limits the body of a sign-in, in bytes, because clients without a token send it. signInTime limits the time
	// to receive it.
	maxSignIn, signInTime = 4 << 10, 5 * time.Second
)

// Sessions authenticates requests with the cookie of a session, and other requests with their bearer token. A session ends when
// its token is no longer valid, 12 hours after it started, after an hour without requests, and with the process. It may be
// used concurrently.
type Sessions struct {
	tokens *Tokens

	mu     sync.Mutex
	byHash map[[sha256.Size]byte]*session // by the hash of the cookie, so memory dumps show no cookie
}

type session struct {
	token           [sha256.Size]byte // hash of the token
	started, usedAt time.Time
}

// NewSessions returns an authenticator without sessions.
func NewSessions(tokens *Tokens) *Sessions {
	return &Sessions{tokens: tokens, byHash: make(map[[sha256.Size]byte]*session)}
}

// Authenticate returns the caller. The error is 401.auth-invalid for a token, 401.auth-expired for a cookie, and
// 403.permissions for a change with a cookie whose origin is unknown.
func (s *Sessions) Authenticate(r *http.Request) (Caller, *relay.Error) {
	cookies := r.CookiesNamed(cookieName(r))
	if len(cookies) == 0 || r.Header.Get("Authorization") != "" {
		return s.tokens.Authenticate(r)
	}
	isRead := r.Method == http.MethodGet || r.Method == http.MethodHead
	// Browsers send one of these headers. checkOrigin has compared their values.
	if !isRead && r.Header.Get("Origin") == "" && r.Header.Get("Sec-Fetch-Site") == "" {
		return Caller{}, relay.NewError(relay.CodePermissions, "a change with a session requires the header Origin")
	}
	for _, cookie := range cookies { // a server on another port of the host can add some
		if caller, ok := s.findSession(cookie.Value); ok {
			return caller, nil
		}
	}
	return Caller{}, relay.NewError(relay.CodeAuthExpired, "the session has ended: sign in again")
}

// findSession returns the caller of a session that is valid, and removes others.
func (s *Sessions) findSession(cookie string) (Caller, bool) {
	hash, now := sha256.Sum256([]byte(cookie)), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.byHash[hash]
	if found == nil {
		return Caller{}, false
	}
	token, ok := s.tokens.findToken(found.token)
	if !ok || found.started.Before(token.since) ||
		now.Sub(found.started) >= sessionLifetime || now.Sub(found.usedAt) >= sessionIdleTime {
		delete(s.byHash, hash)
		return Caller{}, false
	}
	found.usedAt = now
	caller := token.toCaller()
	caller.hasSession = true
	return caller, true
}

// startSession starts a session for a valid token and returns its cookie.
func (s *Sessions) startSession(token string) (cookie string, caller Caller, ok bool) {
	hash := sha256.Sum256([]byte(token))
	valid, ok := s.tokens.findToken(hash)
	if !ok {
		return "", caller, false
	}
	cookie = rand.Text() + rand.Text() // 260 bits
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest [sha256.Size]byte
	last, count := now, 0
	for key, existing := range s.byHash {
		if existing.token != hash {
			continue
		}
		count++
		if existing.usedAt.Before(last) {
			oldest, last = key, existing.usedAt
		}
	}
	if count >= maxTokenSessions {
		delete(s.byHash, oldest)
	}
	s.byHash[sha256.Sum256([]byte(cookie))] = &session{hash, now, now}
	caller = valid.toCaller()
	caller.hasSession = true
	return cookie, caller, true
}

// endSessions ends the sessions whose cookies r has.
func (s *Sessions) endSessions(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cookie := range r.CookiesNamed(cookieName(r)) {
		delete(s.byHash, sha256.Sum256([]byte(cookie.Value)))
	}
}

// cookieName contains the port, because browsers send a cookie to all ports of a host.
func cookieName(r *http.Request) string {
	name := "hubrelay_session"
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		name += "_" + port
	}
	if r.TLS != nil {
		name = "__Host-" + name // RFC 6265bis: only this host can set it, over TLS
	}
	return name
}

func setCookie(w http.ResponseWriter, r *http.Request, value string, maxAge int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(r), Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, Secure: r.TLS != nil,
		SameSite: http.SameSiteStrictMode,
	})
}

// signIn starts the session of a browser. A body that cannot be read counts as a failed authentication. The connection makes
// room for others until the response is sent, because the request needs no credentials.
func (a *Admin) signIn(w http.ResponseWriter, r *http.Request) {
	httpserver.EndSoon(w, r)
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(signInTime)) // tests have no connection
	r.Body = http.MaxBytesReader(w, r.Body, maxSignIn)
	var request adminapi.SignInRequest
	if err := decodeBody(r, maxSignIn, &request); err != nil {
		httpserver.WriteError(w, r, a.countAuthFailure(w, r, a.api.clientError(r, err)))
		return
	}
	cookie, caller, ok := a.opt.Sessions.startSession(strings.TrimSpace(request.Token))
	if !ok {
		httpserver.WriteError(w, r, a.countAuthFailure(w, r,
			relay.NewError(relay.CodeAuthInvalid, "the token is not one of admin.tokens")))
		return
	}
	a.opt.Sessions.endSessions(r) // of the same browser
	a.opt.Audit.Record(audit.Entry{
		Actor: "admin " + caller.Name, Address: remoteAddr(r), Action: audit.ActionAdminAuthenticate, Result: audit.ResultOK,
	})
	setCookie(w, r, cookie, 0)
	a.api.writeResponse(w, r, adminapi.Envelope[adminapi.Session]{Data: a.describeSession(caller)})
}

// signOut ends the session of a browser.
func (a *Admin) signOut(w http.ResponseWriter, r *http.Request) {
	endSoon(w, r)
	a.opt.Sessions.endSessions(r)
	setCookie(w, r, "", -1)
	w.WriteHeader(http.StatusNoContent)
}

func (a *Admin) describeSession(c Caller) adminapi.Session {
	return adminapi.Session{
		Name: c.Name, Role: c.Role, Relay: a.opt.Relay, Node: a.opt.Node, Version: a.opt.Version, CanSignOut: c.hasSession,
	}
}
