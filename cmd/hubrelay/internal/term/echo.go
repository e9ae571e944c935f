package term

import (
	"golang.org/x/sys/unix"
)

// HideInput stops the terminal fd from showing typed text until restore is called.
func HideInput(fd int) (restore func(), err error) {
	before, err := unix.IoctlGetTermios(fd, readTermios)
	if err != nil {
		return nil, err
	}
	hidden := *before
	hidden.Lflag &^= unix.ECHO
	hidden.Lflag |= unix.ICANON | unix.ISIG
	hidden.Iflag |= unix.ICRNL
	if err := unix.IoctlSetTermios(fd, writeTermios, &hidden); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(fd, writeTermios, before) }, nil
}
