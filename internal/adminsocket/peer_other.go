//go:build !linux && !darwin

package adminsocket

import "errors"

// readPeerUID always fails, because the system call is unknown. Every connection is therefore rejected.
func readPeerUID(int) (uid int, err error) {
	return -1, errors.New("this system does not report the user of a connection; use admin.tokens")
}
