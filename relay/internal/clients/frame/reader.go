package frame

import (
	"encoding/binary"
	"unicode/utf8"
)

// MaxMessage is the maximum size of a client's message in bytes. Clients have nothing to send.
const MaxMessage = 4 << 10

// Reader parses the frames of a websocket client (RFC 6455, section 5.2). It skips the content of messages, so it
// needs no buffer and an idle client costs little. The zero value is ready to use.
type Reader struct {
	header       [14]byte
	headerLen    int8  // received bytes of the header
	inMessage    bool  // the last frame of a message is outstanding
	messageBytes int32 // bytes of that message so far, as received
	// Deflated accepts compressed messages. They are skipped like all others, not inflated.
	Deflated    bool
	payloadLeft int64 // outstanding bytes of the payload
	control     []byte
	end         End
}

// End is the reason why a client's stream of frames ended.
type End uint8

// The reasons why a Reader stops.
const (
	NotEnded      End = iota
	ByClient          // the client sent a close frame
	ByBrokenFrame     // the client violated RFC 6455 or sent a message larger than MaxMessage
)

// End returns why the Reader stopped. It ignores all bytes after that.
func (rd *Reader) End() End { return rd.end }

// Reply is the frame to send in response to a control frame or a violation. The zero value is no reply.
type Reply struct {
	Frame   []byte
	IsClose bool // Frame is a close frame
}

// Consume parses p until a frame needs a reply, and returns the bytes after that frame.
func (rd *Reader) Consume(p []byte) (rest []byte, r Reply) {
	for len(p) > 0 && rd.end == NotEnded {
		if rd.payloadLeft > 0 {
			n := int(min(rd.payloadLeft, int64(len(p))))
			if rd.isControl() {
				rd.control = append(rd.control, p[:n]...)
			}
			rd.payloadLeft -= int64(n)
			p = p[n:]
		} else {
			rd.header[rd.headerLen] = p[0]
			rd.headerLen++
			p = p[1:]
			if rd.headerLen == 2 {
				if problem := rd.validateHeader(); problem != "" {
					return p, rd.fail(closeProtocolError, problem)
				}
			}
			if rd.headerLen < 2 || rd.headerLen < rd.headerSize() {
				continue
			}
			if !rd.startPayload() {
				return p, rd.fail(closeMessageTooBig, "")
			}
		}
		if rd.payloadLeft > 0 {
			continue
		}
		rd.headerLen = 0
		if rd.isControl() {
			if r = rd.finishControl(); r.Frame != nil {
				return p, r
			}
		}
	}
	return nil, Reply{}
}

func (rd *Reader) opcode() byte    { return rd.header[0] & opcodeMask }
func (rd *Reader) isControl() bool { return rd.opcode() >= opcodeClose }

// validateHeader checks the first two bytes of a frame.
func (rd *Reader) validateHeader() (problem string) {
	const masked = 0x80
	first, second := rd.header[0], rd.header[1]
	final, reserved := first&fin != 0, first&0x70
	opcode := rd.opcode()
	if rd.Deflated && (opcode == opcodeText || opcode == opcodeBinary) {
		reserved &^= rsv1 // valid in the first frame of a message only
	}
	switch {
	case reserved != 0:
		return "a reserved bit is set"
	case second&masked == 0:
		return "a client must mask its frames"
	}
	switch opcode {
	case opcodeClose, opcodePing, opcodePong:
		if !final || second&^masked > maxControlPayload {
			return "a control frame must be short and in one piece"
		}
	case opcodeText, opcodeBinary:
		if rd.inMessage {
			return "a message starts inside another"
		}
		rd.inMessage, rd.messageBytes = !final, 0
	case opcodeContinuation:
		if !rd.inMessage {
			return "a continuation frame without a message"
		}
		rd.inMessage = !final
	default:
		return "the opcode is unknown"
	}
	return ""
}

// headerSize returns the size of the header, which is known after its second byte.
func (rd *Reader) headerSize() int8 {
	const mask = 4
	switch rd.header[1] & 0x7f {
	case 126:
		return 2 + 2 + mask
	case 127:
		return 2 + 8 + mask
	default:
		return 2 + mask
	}
}

// startPayload reads the length from a complete header. It returns false if the message is too large.
func (rd *Reader) startPayload() bool {
	var length uint64
	switch rd.header[1] & 0x7f {
	case 126:
		length = uint64(binary.BigEndian.Uint16(rd.header[2:]))
	case 127:
		length = binary.BigEndian.Uint64(rd.header[2:])
	default:
		length = uint64(rd.header[1] & 0x7f)
	}
	if !rd.isControl() {
		if length > uint64(MaxMessage-rd.messageBytes) {
			return false
		}
		rd.messageBytes += int32(length)
	}
	rd.payloadLeft = int64(length)
	return true
}

// finishControl handles a complete control frame.
func (rd *Reader) finishControl() Reply {
	payload := rd.control
	rd.control = nil
	mask := rd.header[rd.headerSize()-4:]
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	switch rd.opcode() {
	case opcodePing:
		return Reply{Frame: append([]byte{finPong, byte(len(payload))}, payload...)}
	case opcodeClose:
		return rd.handleClose(payload)
	default:
		return Reply{}
	}
}

// handleClose replies to a close frame with the same code.
func (rd *Reader) handleClose(payload []byte) Reply {
	code := closeNoStatus
	if len(payload) >= 2 {
		code = int(binary.BigEndian.Uint16(payload))
		if !isValidCloseCode(code) {
			return rd.fail(closeProtocolError, "the close code is invalid")
		}
		if !utf8.Valid(payload[2:]) {
			return rd.fail(closeProtocolError, "the close reason is not UTF-8")
		}
	}
	rd.end = ByClient
	frame := []byte{finClose, 0}
	if code != closeNoStatus {
		frame = NewClose(uint16(code), "")
	}
	return Reply{Frame: frame, IsClose: true}
}

// isValidCloseCode reports whether RFC 6455, section 7.4, or the IANA registry lets a client send a close code.
func isValidCloseCode(code int) bool {
	switch code {
	case closeNormal, closeGoingAway, closeProtocolError, closeUnsupportedData, closeInvalidPayload, ClosePolicy,
		closeMessageTooBig, closeMandatoryExtension, closeInternalError, CloseRestart, CloseSlowConsumer:
		return true
	}
	return code >= 3000 && code <= 4999
}

func (rd *Reader) fail(code uint16, problem string) Reply {
	rd.end = ByBrokenFrame
	return Reply{Frame: NewClose(code, problem), IsClose: true}
}
