//go:build !linux

package host

import "os"

// openPinned compares a program with its pin and returns nil: it is run by name.
func openPinned(program, sum string) (*os.File, error) { return nil, checkPin(program, sum, "sha256") }
