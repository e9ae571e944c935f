package frame

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strconv"
)

// A browser reconnects after two to four seconds, in milliseconds. The jitter spreads reconnects.
const (
	minReconnectDelay = 2000
	reconnectJitter   = 2000
)

// NewSSEPreamble returns the start of an event stream: the reconnect delay, and the cursor unless it is nil.
func NewSSEPreamble(cursor []byte) []byte {
	b := append([]byte("retry: "), strconv.Itoa(minReconnectDelay+rand.IntN(reconnectJitter))...)
	b = append(b, '\n')
	return append(append(b, NewSSEHeartbeat(cursor)...), '\n')
}

// NewSSEHeartbeat returns a comment, followed by the cursor unless it is nil. Browsers store the cursor.
func NewSSEHeartbeat(cursor []byte) []byte {
	if cursor == nil {
		return []byte(":\n")
	}
	return append(append([]byte(":\nid: "), cursor...), '\n')
}

// newEvent returns a message as an event. JSON may contain line breaks between its tokens; each starts a "data" line.
func newEvent(cursor []byte, parts ...[]byte) []byte {
	size := len("id: \ndata: \n\n") + len(cursor)
	for _, part := range parts {
		size += len(part)
	}
	b := append(append(append(make([]byte, 0, size), "id: "...), cursor...), "\ndata: "...)
	for _, part := range parts {
		for {
			i := bytes.IndexAny(part, "\r\n")
			if i < 0 {
				break
			}
			b = append(append(b, part[:i]...), "\ndata: "...)
			part = part[i+1:]
		}
		b = append(b, part...)
	}
	return append(b, "\n\n"...)
}

// NewSSEClose returns the event "close", the last one of a stream that the relay ends.
func NewSSEClose(code uint16, reason string) []byte {
	data, _ := json.Marshal(struct {
		Code   uint16 `json:"code"`
		Reason string `json:"reason"`
	}{code, reason})
	return append(append([]byte("event: close\ndata: "), data...), "\n\n"...)
}
