package hub

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"

	"github.com/gorilla/websocket"
)

// incoming takes the frames of a client apart (RFC 6455, 5.2). What its messages say is passed over, so that it needs no
// memory while nothing comes: a client costs a small stack and no buffers. The zero value is the beginning.
type incoming struct {
	header  [14]byte
	have    int8  // bytes of the header
	begun   bool  // a message has begun and its last frame has not come
	message int32 // bytes of that message so far, as they came
	// deflated lets messages be compressed. They are passed over as all others, not inflated.
	deflated bool
	skip     int64 // bytes of the payload that are still to come
	control  []byte
	ending   Ending // empty until a close frame has come or is due: nothing counts behind it
}

// reply is what a frame of the client asks for. The zero value asks for nothing.
type reply struct {
	frame  []byte
	closes bool // the frame is a close frame
}

// take goes on with what the client has sent, up to where it asks for a reply, and returns what is left behind that.
func (in *incoming) take(p []byte) (rest []byte, r reply) {
	for len(p) > 0 && in.ending == "" {
		if in.skip > 0 {
			n := int(min(in.skip, int64(len(p))))
			if in.isControl() {
				in.control = append(in.control, p[:n]...)
			}
			in.skip -= int64(n)
			p = p[n:]
		} else {
			in.header[in.have] = p[0]
			in.have++
			p = p[1:]
			if in.have == 2 {
				if problem := in.check(); problem != "" {
					return p, in.broken(websocket.CloseProtocolError, problem)
				}
			}
			if in.have < 2 || in.have < in.headerSize() {
				continue
			}
			if !in.begin() {
				return p, in.broken(websocket.CloseMessageTooBig, "")
			}
		}
		if in.skip > 0 {
			continue
		}
		in.have = 0
		if in.isControl() {
			if r = in.finishControl(); r.frame != nil {
				return p, r
			}
		}
	}
	return nil, reply{}
}

func (in *incoming) opcode() byte    { return in.header[0] & opcodeMask }
func (in *incoming) isControl() bool { return in.opcode() >= opcodeClose }

// check looks at the first two bytes of a frame.
func (in *incoming) check() (problem string) {
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
		if in.begun {
			return "a message begins inside another"
		}
		in.begun, in.message = !final, 0
	case opcodeContinuation:
		if !in.begun {
			return "nothing is there to be continued"
		}
		in.begun = !final
	default:
		return "an opcode that nobody knows"
	}
	return ""
}

// headerSize is known from the second byte on.
func (in *incoming) headerSize() int8 {
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

// begin is called with the whole header, and reports false where the message is too large.
func (in *incoming) begin() bool {
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
		if length > uint64(readLimit-in.message) {
			return false
		}
		in.message += int32(length)
	}
	in.skip = int64(length)
	return true
}

// finishControl is called when a control frame is complete.
func (in *incoming) finishControl() reply {
	payload := in.control
	in.control = nil
	mask := in.header[in.headerSize()-4:]
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	switch in.opcode() {
	case opcodePing:
		return reply{frame: append([]byte{finPong, byte(len(payload))}, payload...)}
	case opcodeClose:
		return in.closed(payload)
	default:
		return reply{}
	}
}

// closed answers a close frame by one with the same code.
func (in *incoming) closed(payload []byte) reply {
	code := closeNoStatus
	if len(payload) >= 2 {
		code = int(binary.BigEndian.Uint16(payload))
		if !mayBeSent(code) {
			return in.broken(websocket.CloseProtocolError, "a close code that nobody may send")
		}
		if !utf8.Valid(payload[2:]) {
			return in.broken(websocket.CloseProtocolError, "the reason to close is not UTF-8")
		}
	}
	in.ending = EndedByClient
	frame := []byte{finClose, 0}
	if code != closeNoStatus {
		frame = closeFrame(uint16(code), "")
	}
	return reply{frame: frame, closes: true}
}

// mayBeSent says whether RFC 6455, 7.4 or the IANA registry lets a client send a close code.
func mayBeSent(code int) bool {
	switch code {
	case websocket.CloseNormalClosure, websocket.CloseGoingAway, websocket.CloseProtocolError, websocket.CloseUnsupportedData,
		websocket.CloseInvalidFramePayloadData, websocket.ClosePolicyViolation, websocket.CloseMessageTooBig,
		websocket.CloseMandatoryExtension, websocket.CloseInternalServerErr, websocket.CloseServiceRestart, websocket.CloseTryAgainLater:
		return true
	}
	return code >= 3000 && code <= 4999
}

func (in *incoming) broken(code uint16, problem string) reply {
	in.ending = EndedProtocol
	return reply{frame: closeFrame(code, problem), closes: true}
}

var errAnswered = errors.New("a close frame was received or sent")

// take does what the client's bytes ask for. It returns an error where nothing more is to be heard.
func (c *client) take(in *incoming, p []byte) error {
	for len(p) > 0 {
		var r reply
		p, r = in.take(p)
		switch {
		case r.closes:
			c.close(closing{frame: r.frame, ending: in.ending, cut: true})
		case r.frame != nil:
			c.control(r.frame)
		}
	}
	if in.ending != "" {
		return errAnswered
	}
	return nil
}
