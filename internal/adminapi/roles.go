package adminapi

import "slices"

// Role is the set of permissions of a caller. Each role includes the previous ones.
type Role string

// The roles.
const (
	RoleViewer   Role = "viewer"   // reads everything except profiles
	RoleOperator Role = "operator" // also controls sinks and dead letters
	RoleAdmin    Role = "admin"    // also imports the inventory and takes profiles
)

// Roles returns all roles, the least powerful first.
func Roles() []Role { return []Role{RoleViewer, RoleOperator, RoleAdmin} }

// Allows reports whether r includes the permissions of required.
func (r Role) Allows(required Role) bool {
	order := Roles()
	return slices.Contains(order, r) && slices.Index(order, r) >= slices.Index(order, required)
}
