package adminapi

import "net/http"

// SessionPath is the path of sessions. [ShowSession] is its GET. A browser signs in with a POST of a [SignInRequest], which
// sets a cookie, and signs out with DELETE. Both exist only on a TCP listener.
const SessionPath = "/api/session"

// Session describes the caller, and the relay that responds.
type Session struct {
	// Name is the name of the token, or the user of the unix socket.
	Name string `json:"name"`
	Role Role   `json:"role"`
	// Relay is the identity of the relay's data.
	Relay string `json:"relay"`
	// Node is the node that responds.
	Node    string `json:"node"`
	Version string `json:"version"`
	// CanSignOut is true if the caller has signed in with a cookie.
	CanSignOut bool `json:"can_sign_out"`
}

// SignInRequest is the body of a request that starts a session.
type SignInRequest struct {
	// Token is a token of admin.tokens.
	Token string `json:"token"`
}

// ShowSession shows who the caller is.
func ShowSession() Operation[Empty, Session] {
	return newOperation[Empty, Session]("session.show", http.MethodGet, SessionPath, RoleViewer,
		"Show the caller, its role, and the relay")
}
