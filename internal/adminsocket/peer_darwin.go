package adminsocket

import "golang.org/x/sys/unix"

// readPeerUID returns the user that connected to a unix socket, as the kernel recorded it.
func readPeerUID(fd int) (uid int, err error) {
	peer, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return -1, err
	}
	return int(peer.Uid), nil
}
