// Package frame encodes what the server sends to its clients and parses what websocket clients send: frames of RFC 6455,
// events of a server-sent event (SSE) stream, and messages compressed with permessage-deflate (RFC 7692).
//
// It knows neither connections nor subscriptions. The handshake belongs to package transport.
package frame

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/relay"
)

// The opcodes of RFC 6455, and the first bytes of the frames that a server sends, with the FIN bit.
const (
	opcodeContinuation = 0x00
	opcodeText         = 0x01
	opcodeBinary       = 0x02
	opcodeClose        = 0x08
	opcodePing         = 0x09
	opcodePong         = 0x0a
	opcodeMask         = 0x0f

	fin      = 0x80
	finText  = fin | opcodeText
	finClose = fin | opcodeClose
	finPing  = fin | opcodePing
	finPong  = fin | opcodePong
)

// The close codes of RFC 6455 and the IANA registry that the server sends.
const (
	ClosePolicy       = 1008 // the key is no longer valid, or the client sends too much or does not respond to pings
	CloseRestart      = 1012 // the node drains; connect again
	CloseSlowConsumer = 1013 // the client reads too slowly; connect again later
)

// The close codes that only the parser uses.
const (
	closeNormal             = 1000
	closeGoingAway          = 1001
	closeProtocolError      = 1002
	closeUnsupportedData    = 1003
	closeNoStatus           = 1005
	closeInvalidPayload     = 1007
	closeMessageTooBig      = 1009
	closeMandatoryExtension = 1010
	closeInternalError      = 1011
)

const maxControlPayload = 125

// Encoding is the form in which a client receives notifications. Clients with the same encoding share frames.
type Encoding uint8

// The bits of an Encoding. The zero value is a websocket text frame with nothing added.
const (
	WithCursor   Encoding = 1 << iota // each message has a member "cursor"
	WithMetadata                      // each message has the members "id" and "time"
	SSE                               // an event of an SSE stream, whose id is the cursor
	Deflated                          // the client accepts compressed messages; never combined with SSE

	EncodingCount = SSE | Deflated // greater than every valid encoding
)

// New returns a notification in an encoding, uncompressed. The cursor is the position after the notification; only
// WithCursor and SSE use it. A message without an ID gets no metadata.
func New(n *relay.Notification, as Encoding, cursor []byte) []byte {
	encode := newText
	if as&SSE != 0 {
		encode = func(parts ...[]byte) []byte { return newEvent(cursor, parts...) }
	}
	return encodeWith(encode, n, as, cursor)
}

// encodeWith builds the frame of a notification, with the members that the encoding adds. They come last, so parsers
// prefer them to members of the same name.
func encodeWith(encode func(parts ...[]byte) []byte, n *relay.Notification, as Encoding, cursor []byte) []byte {
	end := len(n.Data) - 1
	if as&(WithCursor|WithMetadata) == 0 || end <= 0 || n.Data[end] != '}' {
		return encode(n.Data)
	}
	var buf [256]byte
	added := buf[:0]
	if as&WithMetadata != 0 {
		added = n.AppendMetadata(added)
	}
	if as&WithCursor != 0 { // letters, digits, - and _ need no escaping
		added = append(append(append(added, `,"cursor":"`...), cursor...), '"')
	}
	return encode(n.Data[:end], append(added, '}'))
}

// newText returns a payload, given in parts, as one final text frame.
func newText(parts ...[]byte) []byte {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	frame := newHeader(finText, size)
	for _, part := range parts {
		frame = append(frame, part...)
	}
	return frame
}

// newHeader returns the header of an unmasked frame, with capacity for a payload of the given size.
func newHeader(first byte, size int) []byte {
	header := make([]byte, headerSize(size), headerSize(size)+size)
	header[0] = first
	switch len(header) {
	case 2:
		header[1] = byte(size)
	case 4:
		header[1] = 126
		binary.BigEndian.PutUint16(header[2:], uint16(size))
	default:
		header[1] = 127
		binary.BigEndian.PutUint64(header[2:], uint64(size))
	}
	return header
}

// headerSize returns the size of the header of an unmasked frame with a payload of the given size.
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

// NewClose returns a close frame. A reason that does not fit into a control frame is cut between characters.
func NewClose(code uint16, reason string) []byte {
	if limit := maxControlPayload - 2; len(reason) > limit {
		for limit > 0 && !utf8.RuneStart(reason[limit]) {
			limit--
		}
		reason = reason[:limit]
	}
	frame := []byte{finClose, byte(2 + len(reason)), byte(code >> 8), byte(code)}
	return append(frame, reason...)
}

// NewPing returns a ping frame without a payload.
func NewPing() []byte { return []byte{finPing, 0} }
