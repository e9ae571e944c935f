// Package module is the seam between the daemon and its optional parts. The public API and the admin API know a module
// only by these types, and only relay/daemon/modules.go knows its package. A module has routes and a Start method, which
// gets an [Env]. Start is called once, after Redis is connected and before the admin and the public listener accept requests.
package module

import (
	"context"
	"net/http"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// Env is what a module may use of the daemon.
type Env struct {
	Redis *redisconn.Conn
	// Node is the name of this node, which no other running node has.
	Node string
	// NewID returns a new notification ID.
	NewID func() string
	// Go runs background work until the daemon stops. The daemon also stops if run returns earlier. The name identifies
	// the work in the log.
	Go func(name string, run func(context.Context) error)
}

// PublicRoute is a route of the public API.
type PublicRoute struct {
	// Pattern is a path. A segment {name} is a parameter.
	Pattern string
	// Method is GET, which also allows HEAD, or POST, which has a body.
	Method string
	// Capability is required of the key, in addition to access to the hub in X-Hub-Id. Empty requires none.
	Capability string
	// AuditAction is the name of the action in the audit log, or empty if requests are not recorded.
	AuditAction audit.Action
	// HubPurpose describes the hub in the error about a missing X-Hub-Id.
	HubPurpose string
	// Status is the status of a successful response.
	Status int
	// MaxBody is the maximum size of the body of a POST in bytes. server.max_body also limits it.
	MaxBody int64
	// CheckReady rejects requests that the module cannot handle. It is called after the authorization and before the
	// body is read.
	CheckReady func() *relay.Error
	// Handle returns the value of "data" in the response. A *relay.Error is sent to the client. Any other error is
	// logged and sent as 500.unknown. It is called concurrently.
	Handle func(ctx context.Context, r PublicRequest) (data any, err error)
}

// PublicRequest is an authorized request.
type PublicRequest struct {
	Caller Caller
	// Params are the values of the parameters in the path.
	Params []string
	// ContentType, IdempotencyKey and Body are set for POST. Body is valid until Handle returns.
	ContentType    string
	IdempotencyKey string
	Body           []byte
}

// Caller is the sender of a request whose key can read the hub.
type Caller struct {
	KeyName string
	// Account is the account of the key: "*" for all, and empty for none. Keys of different accounts can have the same name.
	Account string
	Hub     string
	// Sees reports whether the key can read what belongs to an account in this hub.
	Sees func(account string) bool
}

// AdminRoute is a route of the admin API.
type AdminRoute struct {
	Operation adminapi.Description
	// MaxBody is the maximum size of the body in bytes.
	MaxBody int
	// Handle returns the value of "data" in a response with status 200. A *relay.Error is sent to the client. The text
	// of any other error is sent as 503.not-ready. It is called concurrently.
	Handle func(r *http.Request, body []byte) (data any, err error)
}
