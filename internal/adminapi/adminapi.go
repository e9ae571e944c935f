// Package adminapi describes the admin API: its operations, the types of their requests and responses, and the roles.
// The server (relay/internal/adminserver) and the client (internal/adminclient) use the same descriptions.
//
// Times are RFC 3339 in UTC. Durations in requests use Go's notation, such as 24h. Lists are never null.
package adminapi

import "slices"

const (
	// RelayHeader is the header by which a request names the relay that it is meant for, with the identity of its data.
	RelayHeader = "Hubrelay-Relay"
	// WarningHeader is the header of responses that describes how the running configuration differs from the file, in
	// percent-encoding (RFC 3986). It is missing if they are equal.
	WarningHeader = "Hubrelay-Warning"
)

// Role is the set of permissions of a caller. Each role includes the previous ones.
type Role string

// The roles.
const (
	RoleViewer   Role = "viewer"   // reads everything except payloads, the configuration and profiles
	RoleOperator Role = "operator" // also reads payloads and the configuration, controls sinks and dead letters, and migrates instances
	RoleAdmin    Role = "admin"    // also manages keys, accounts and the inventory, and takes profiles
)

// Roles returns all roles, the least powerful first.
func Roles() []Role { return []Role{RoleViewer, RoleOperator, RoleAdmin} }

// Allows reports whether r includes the permissions of required.
func (r Role) Allows(required Role) bool {
	order := Roles()
	return slices.Contains(order, r) && slices.Index(order, r) >= slices.Index(order, required)
}
