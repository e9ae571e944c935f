// Package adminapi has what the admin API's server and its client share.
package adminapi

import "slices"

// Role says what a caller of the admin API may do. Each role includes the ones before it.
type Role string

// The roles.
const (
	RoleViewer   Role = "viewer"   // reads everything but profiles
	RoleOperator Role = "operator" // also steers sinks and dead letters
	RoleAdmin    Role = "admin"    // also imports the inventory and takes profiles
)

// Roles returns all roles, the least powerful first.
func Roles() []Role { return []Role{RoleViewer, RoleOperator, RoleAdmin} }

// Allows reports whether r includes the rights of needed.
func (r Role) Allows(needed Role) bool {
	order := Roles()
	return slices.Contains(order, r) && slices.Index(order, r) >= slices.Index(order, needed)
}
