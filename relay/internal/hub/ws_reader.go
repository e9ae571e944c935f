package hub

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"

	"github.com/gorilla/websocket"
)

// frameReader parses the frames of a client (RFC 6455, section 5.2). It skips the content of messages, so it needs no
// buffer. The zero value is ready to use.
type frameReader struct {
	header       [14]byte
	headerLen    int8  // bytes of the header
	inMessage    bool  // a message has begun and its last frame has not come
	messageBytes int32 // bytes of that message so far, as they came
	// deflated lets messages be compressed. They are passed over as all others, not inflated.
	deflated    bool
	payloadLeft int64 // bytes of the payload that are still to come
	control     []byte
	closeReason CloseReason // set when a close frame was received or must be sent; later input is ignored
}

// controlReply is the required reply to a frame. The zero value is none.
type controlReply struct {
	frame  []byte
	closes bool // the frame is a close frame
}

// consume parses input up to the next required reply, and returns the remaining input.
func (in *frameReader) consume(p []byte) (rest []byte, r controlReply) {
	for len(p) > 0 && in.closeReason == "" {
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
					return p, in.protocolError(websocket.CloseProtocolError, problem)
				}
			}
			if in.headerLen < 2 || in.headerLen < in.headerSize() {
				continue
			}
			if !in.startPayload() {
				return p, in.protocolError(websocket.CloseMessageTooBig, "")
			}
		}
		if in.payloadLeft > 0 {
			continue
		}
		in.headerLen = 0
		if in.isControl() {
			if r = in.finishControl(); r.frame != nil {
				return p, r
			}
		}
	}
	return nil, controlReply{}
}

func (in *frameReader) opcode() byte    { return in.header[0] & opcodeMask }
func (in *frameReader) isControl() bool { return in.opcode() >= opcodeClose }

// validateHeader looks at the first two bytes of a frame.
func (in *frameReader) validateHeader() (problem string) {
	const masked = 0x80
	first, second := in.header[0], in.header[1]
	final, reserved := first&fin != 0, first&0x70
	opcode := in.opcode()
	if in.deflated && (opcode == opcodeText || opcode == opcodeBinary) {
		reserved &^= rsv1 // the first frame says it for all of its message
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
			return "a message begins inside another"
		}
		in.inMessage, in.messageBytes = !final, 0
	case opcodeContinuation:
		if !in.inMessage {
			return "nothing is there to be continued"
		}
		in.inMessage = !final
	default:
		return "an unknown opcode"
	}
	return ""
}

// headerSize is known from the second byte on.
func (in *frameReader) headerSize() int8 {
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

// startPayload is called after a complete header. It returns false if the message is too large.
func (in *frameReader) startPayload() bool {
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
		if length > uint64(maxClientMessage-in.messageBytes) {
			return false
		}
		in.messageBytes += int32(length)
	}
	in.payloadLeft = int64(length)
	return true
}

// finishControl is called when a control frame is complete.
func (in *frameReader) finishControl() controlReply {
	payload := in.control
	in.control = nil
	mask := in.header[in.headerSize()-4:]
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	switch in.opcode() {
	case opcodePing:
		return controlReply{frame: append([]byte{finPong, byte(len(payload))}, payload...)}
	case opcodeClose:
		return in.handleClose(payload)
	default:
		return controlReply{}
	}
}

// handleClose answers a close frame by one with the same code.
func (in *frameReader) handleClose(payload []byte) controlReply {
	code := closeNoStatus
	if len(payload) >= 2 {
		code = int(binary.BigEndian.Uint16(payload))
		if !isValidCloseCode(code) {
			return in.protocolError(websocket.CloseProtocolError, "an invalid close code")
		}
		if !utf8.Valid(payload[2:]) {
			return in.protocolError(websocket.CloseProtocolError, "the reason to close is not UTF-8")
		}
	}
	in.closeReason = ClosedByClient
	frame := []byte{finClose, 0}
	if code != closeNoStatus {
		frame = closeFrame(uint16(code), "")
	}
	return controlReply{frame: frame, closes: true}
}

// isValidCloseCode reports whether a client may send a close code, by RFC 6455, section 7.4, and the IANA registry.
func isValidCloseCode(code int) bool {
	switch code {
	case websocket.CloseNormalClosure, websocket.CloseGoingAway, websocket.CloseProtocolError,
		websocket.CloseUnsupportedData,
		websocket.CloseInvalidFramePayloadData, websocket.ClosePolicyViolation, websocket.CloseMessageTooBig,
		websocket.CloseMandatoryExtension, websocket.CloseInternalServerErr, websocket.CloseServiceRestart,
		websocket.CloseTryAgainLater:
		return true
	}
	return code >= 3000 && code <= 4999
}

func (in *frameReader) protocolError(code uint16, problem string) controlReply {
	in.closeReason = ClosedProtocolError
	return controlReply{frame: closeFrame(code, problem), closes: true}
}

var errCloseFrame = errors.New("a close frame was received or sent")

// handleInput parses input and replies to it. It returns an error when reading must end.
func (c *client) handleInput(in *frameReader, p []byte) error {
	for len(p) > 0 {
		var r controlReply
		p, r = in.consume(p)
		switch {
		case r.closes:
			c.close(closeRequest{frame: r.frame, closeReason: in.closeReason, dropQueued: true})
		case r.frame != nil:
			c.sendControl(r.frame)
		}
	}
	if in.closeReason != "" {
		return errCloseFrame
	}
	return nil
}
