package clients

import "encoding/binary"

// First bytes of the frames of RFC 6455 with the FIN bit, and the bit of a compressed message.
const (
	finText           = 0x81
	finClose          = 0x88
	finPong           = 0x8a
	rsv1              = 0x40
	maxControlPayload = 125

	closeNoStatus = 1005
	deflateTail   = "\x00\x00\xff\xff"
)

// closeCode returns the code of a close frame that a server sends.
func closeCode(frame []byte) int {
	if len(frame) < 4 {
		return closeNoStatus
	}
	return int(binary.BigEndian.Uint16(frame[2:]))
}

// headerSize returns the size of the header of an unmasked frame.
func headerSize(size int) int {
	switch {
	case size <= maxControlPayload:
		return 2
	case size <= 0xffff:
		return 4
	default:
		return 10
	}
}
