package hub

import (
	"encoding/binary"
	"unicode/utf8"
)

// The opcodes of RFC 6455, and those that a server sends with the FIN bit.
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

// The close codes of RFC 6455 and the IANA registry that this package sends by itself.
const (
	ClosePolicy   = 1008 // the key expired or was withdrawn, or the client talks too much or answers no ping
	CloseRestart  = 1012 // the node drains; connect again
	CloseTooSlow  = 1013 // the client reads too slowly; connect again later
	closeNoStatus = 1005
)

const maxControlPayload = 125

// form is how a client gets notifications. Clients of one form share frames.
type form uint8

const (
	withCursor form = 1 << iota // each message has a member "cursor"
	asEvent                     // an event of an event stream, whose id is the cursor

	forms = 1 << iota // how many there are
)

// newFrame returns a notification in one form, with the cursor that is its position.
func newFrame(data []byte, as form, cursor []byte) []byte {
	frame := textFrame
	if as&asEvent != 0 {
		frame = func(parts ...[]byte) []byte { return eventFrame(cursor, parts...) }
	}
	if end := len(data) - 1; as&withCursor != 0 && end > 0 && data[end] == '}' {
		return frame(data[:end], beforeCursor, cursor, behindCursor)
	}
	return frame(data)
}

// A cursor is made of letters, digits, - and _, so that it needs no escaping.
var beforeCursor, behindCursor = []byte(`,"cursor":"`), []byte(`"}`)

// textFrame returns a payload, given in parts, as one unmasked, final text frame.
func textFrame(parts ...[]byte) []byte {
	var header [10]byte
	header[0] = finText
	n, size := 2, 0
	for _, part := range parts {
		size += len(part)
	}
	switch {
	case size <= maxControlPayload:
		header[1] = byte(size)
	case size <= 0xffff:
		header[1] = 126
		binary.BigEndian.PutUint16(header[2:], uint16(size))
		n = 4
	default:
		header[1] = 127
		binary.BigEndian.PutUint64(header[2:], uint64(size))
		n = 10
	}
	frame := append(make([]byte, 0, n+size), header[:n]...)
	for _, part := range parts {
		frame = append(frame, part...)
	}
	return frame
}

// closeFrame returns a close frame; a reason too long for a control frame is cut between characters.
func closeFrame(code uint16, reason string) []byte {
	if most := maxControlPayload - 2; len(reason) > most {
		for most > 0 && !utf8.RuneStart(reason[most]) {
			most--
		}
		reason = reason[:most]
	}
	frame := []byte{finClose, byte(2 + len(reason)), byte(code >> 8), byte(code)}
	return append(frame, reason...)
}
