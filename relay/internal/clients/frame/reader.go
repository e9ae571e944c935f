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
func (in *Reader) End() End { return in.end }

// Reply is the frame to send in response to a control frame or a violation. The zero value is no reply.
type Reply struct {
	Frame   []byte
	IsClose bool // Frame is a close frame
}

// Consume parses p until a frame needs a reply, and returns the bytes after that frame.
func (in *Reader) Consume(p []byte) (rest []byte, r Reply) {
	for len(p) > 0 && in.end == NotEnded {
		if in.payloadLeft > 0 {
			n := int(min(in.payloadLeft, int64(len(p))))
			if in.isControl() {
				in.control = append(in.control, p[:n]...)
			}
			in.payloadLeft -= int64(n)
			p = p[n:]
		} else {
			in.header[in.headerLen] = p[0]
			in.headerLen++
			p = p[1:]
			if in.headerLen == 2 {
				if problem := in.validateHeader(); problem != "" {
					return p, in.fail(closeProtocolError, problem)
				}
			}
			if in.headerLen < 2 || in.headerLen < in.headerSize() {
				continue
			}
			if !in.startPayload() {
				return p, in.fail(closeMessageTooBig, "")
			}
		}
		if in.payloadLeft > 0 {
			continue
		}
		in.headerLen = 0
		if in.isControl() {
			if r = in.finishControl(); r.Frame != nil {
				return p, r
			}
		}
	}
	return nil, Reply{}
}

func (in *Reader) opcode() byte    { return in.header[0] & opcodeMask }
func (in *Reader) isControl() bool { return in.opcode() >= opcodeClose }

// validateHeader checks the first two bytes of a frame.
func (in *Reader) validateHeader() (problem string) {
	const masked = 0x80
	first, second := in.header[0], in.header[1]
	final, reserved := first&fin != 0, first&0x70
	opcode := in.opcode()
	if in.Deflated && (opcode == opcodeText || opcode == opcodeBinary) {
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
		if in.inMessage {
			return "a message starts inside another"
		}
		in.inMessage, in.messageBytes = !final, 0
	case opcodeContinuation:
		if !in.inMessage {
			return "a continuation frame without a message"
		}
		in.inMessage = !final
	default:
		return "the opcode is unknown"
	}
	return ""
}

// headerSize returns the size of the header, which is known after its second byte.
func (in *Reader) headerSize() int8 {
	const mask = 4
	switch in.header[1] & 0x7f {
	case 126:
		return 2 + 2 + mask
	case 127:
		return 2 + 8 + mask
	default:
		return 2 + mask
	}
}

// startPayload reads the length from a complete header. It returns false if the message is too large.
func (in *Reader) startPayload() bool {
	var length uint64
	switch in.header[1] & 0x7f {
	case 126:
		length = uint64(binary.BigEndian.Uint16(in.header[2:]))
	case 127:
		length = binary.BigEndian.Uint64(in.header[2:])
	default:
		length = uint64(in.header[1] & 0x7f)
	}
	if !in.isControl() {
		if length > uint64(MaxMessage-in.messageBytes) {
			return false
		}
		in.messageBytes += int32(length)
	}
	in.payloadLeft = int64(length)
	return true
}

// finishControl handles a complete control frame.
func (in *Reader) finishControl() Reply {
	payload := in.control
	in.control = nil
	mask := in.header[in.headerSize()-4:]
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	switch in.opcode() {
	case opcodePing:
		return Reply{Frame: append([]byte{finPong, byte(len(payload))}, payload...)}
	case opcodeClose:
		return in.handleClose(payload)
	default:
		return Reply{}
	}
}

// handleClose replies to a close frame with the same code.
func (in *Reader) handleClose(payload []byte) Reply {
	code := closeNoStatus
	if len(payload) >= 2 {
		code = int(binary.BigEndian.Uint16(payload))
		if !isValidCloseCode(code) {
			return in.fail(closeProtocolError, "the close code is invalid")
		}
		if !utf8.Valid(payload[2:]) {
			return in.fail(closeProtocolError, "the close reason is not UTF-8")
		}
	}
	in.end = ByClient
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

func (in *Reader) fail(code uint16, problem string) Reply {
	in.end = ByBrokenFrame
	return Reply{Frame: NewClose(code, problem), IsClose: true}
}
