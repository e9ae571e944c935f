//go:build !linux

package directory

// mountBelow finds no mount points on this system.
func mountBelow(string) (string, error) { return "", nil }
