package hub

import (
	"encoding/binary"
	"unicode/utf8"
)

// The opcodes of RFC 6455, and the first bytes of a server's frames with the FIN bit.
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
	ClosePolicy       = 1008 // the key expired, changed or was removed, the client sends too much, or answers no ping
	CloseRestart      = 1012 // the node drains; connect again
	CloseSlowConsumer = 1013 // the client reads too slowly; connect again later
	closeNoStatus     = 1005
)

const maxControlPayload = 125

// frameFormat is an encoding of notifications. Clients of one format share frames.
type frameFormat uint8

const (
	formatCursor   frameFormat = 1 << iota // each message has a member "cursor"
	formatSSE                              // an event of an event stream, whose id is the cursor
	formatDeflated                         // the client understands compressed messages; never with asEvent

	formatCount = formatSSE | formatDeflated // how many there are
)

// newFrame returns a notification in one form, not compressed, with the cursor that is its position.
func newFrame(data []byte, as frameFormat, cursor []byte) []byte {
	frame := textFrame
	if as&formatSSE != 0 {
		frame = func(parts ...[]byte) []byte { return sseFrame(cursor, parts...) }
	}
	return buildFrame(frame, data, as, cursor)
}

// buildFrame has a frame made of a notification in one form.
func buildFrame(frame func(parts ...[]byte) []byte, data []byte, as frameFormat, cursor []byte) []byte {
	if end := len(data) - 1; as&formatCursor != 0 && end > 0 && data[end] == '}' {
		return frame(data[:end], cursorPrefix, cursor, cursorSuffix)
	}
	return frame(data)
}

// A cursor consists of letters, digits, - and _, so it needs no escaping.
var cursorPrefix, cursorSuffix = []byte(`,"cursor":"`), []byte(`"}`)

// textFrame returns a payload, given in parts, as one unmasked, final text frame.
func textFrame(parts ...[]byte) []byte {
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

// newHeader returns the header of an unmasked frame, with room for a payload of that size.
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

// headerSize is that of an unmasked frame.
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
