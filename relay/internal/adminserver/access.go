package adminserver

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/adminsocket"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

// Caller is the sender of a request.
type Caller struct {
	Name string
	Role adminapi.Role

	hasSession bool
}

// Authenticator identifies the caller of a request. It may be used concurrently.
type Authenticator interface {
	Authenticate(r *http.Request) (Caller, *relay.Error)
}

// SocketPeer authenticates requests on a unix socket. The listener has checked the user of each connection. It may be used
// concurrently.
type SocketPeer struct {
	names sync.Map // descriptions of users by UID, because a lookup reads a file
}

// Authenticate returns a caller with [adminapi.RoleAdmin]. Its name is the user at the other end, such as
// "user 0 (root)".
func (p *SocketPeer) Authenticate(r *http.Request) (Caller, *relay.Error) {
	return Caller{Name: p.describePeer(httpserver.RequestConn(r.Context())), Role: adminapi.RoleAdmin}, nil
}

// describePeer describes the user at the other end of a unix socket. For another connection it returns "socket".
func (p *SocketPeer) describePeer(conn net.Conn) string {
	uid, err := adminsocket.PeerUID(conn)
	if err != nil {
		return "socket"
	}
	known, _ := p.names.Load(uid)
	if name, ok := known.(string); ok {
		return name
	}
	name := "user " + strconv.Itoa(uid)
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		name += " (" + u.Username + ")"
	}
	p.names.Store(uid, name)
	return name
}

// Token is a credential for the admin listener.
type Token struct {
	Name string
	Role adminapi.Role
	Hash [sha256.Size]byte
}

// Tokens authenticates requests by the bearer token in Authorization. The zero value accepts no token.
type Tokens struct{ list atomic.Pointer[[]validToken] }

// validToken is a token with the time at which it became valid. If it is removed and added again, earlier sessions end.
type validToken struct {
	Token
	since time.Time
}

// Replace replaces the valid tokens. It must not be called concurrently.
func (t *Tokens) Replace(list []Token) {
	now, valid := time.Now(), make([]validToken, len(list))
	for i, token := range list {
		valid[i] = validToken{token, now}
		if earlier, ok := t.findToken(token.Hash); ok {
			valid[i].since = earlier.since
		}
	}
	t.list.Store(&valid)
}

// Authenticate returns the caller whose token the request presents. The error is 401.auth-invalid.
func (t *Tokens) Authenticate(r *http.Request) (Caller, *relay.Error) {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	secret = strings.Trim(secret, " \t")
	if secret == "" || !strings.EqualFold(scheme, "Bearer") {
		return Caller{}, relay.NewError(relay.CodeAuthInvalid,
			"this listener requires a token of admin.tokens: send Authorization: Bearer TOKEN, or set "+
				"HUBRELAY_ADMIN_TOKEN")
	}
	token, ok := t.findToken(sha256.Sum256([]byte(secret)))
	if !ok {
		return Caller{}, relay.NewError(relay.CodeAuthInvalid, "the token is not one of admin.tokens")
	}
	return token.toCaller(), nil
}

func (t *validToken) toCaller() Caller { return Caller{Name: t.Name, Role: t.Role} }

// findToken returns the token that has this hash.
func (t *Tokens) findToken(hash [sha256.Size]byte) (validToken, bool) {
	list := t.list.Load()
	if list == nil {
		return validToken{}, false
	}
	found := -1 // It compares with all tokens, so the response time does not depend on the token.
	for i := range *list {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare((*list)[i].Hash[:], hash[:]), i, found)
	}
	if found < 0 {
		return validToken{}, false
	}
	return (*list)[found], true
}

type callerKey struct{}

// requireRole returns 403.permissions if the caller of r does not have the role.
func requireRole(r *http.Request, required adminapi.Role) *relay.Error {
	caller := callerFrom(r)
	if caller.Role.Allows(required) {
		return nil
	}
	detail := "this requires the role " + string(required) + "; the token " + caller.Name + " has the role " +
		string(caller.Role)
	return relay.NewError(relay.CodePermissions, detail).WithExtra("role", string(required))
}

func callerFrom(r *http.Request) Caller {
	caller, _ := r.Context().Value(callerKey{}).(Caller)
	return caller
}

func withCaller(r *http.Request, c Caller) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
}
