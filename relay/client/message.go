package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
)

// readMessage reads one message; of one that is too large and is to be skipped its beginning, and then the rest for nothing.
// alive is called while bytes come. What counts is the message, compressed or not: the connection's own limit is for what
// comes over the line, and a small message can become a large one.
func (l *listener) readMessage(ws *websocket.Conn, alive func()) (kind int, data []byte, size int64, err error) {
	kind, r, err := ws.NextReader()
	if err != nil {
		return 0, nil, 0, err
	}
	most := min(l.options.MaxMessage, math.MaxInt64-1)
	data, err = io.ReadAll(io.LimitReader(r, most))
	size = int64(len(data))
	for err == nil && size >= most {
		var n int64
		alive()
		n, err = io.CopyN(io.Discard, r, 64<<10)
		size += n
		if size > most && (l.options.OnSkipped == nil || size > max(most, maxSkippedMessage)) {
			tooBig := websocket.FormatCloseMessage(websocket.CloseMessageTooBig, "")
			_ = ws.WriteControl(websocket.CloseMessage, tooBig, time.Now().Add(controlTimeout))
			return 0, nil, 0, websocket.ErrReadLimit
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return kind, data, size, err
}

// decode reads a message of so many bytes, of which data may be the beginning.
func (l *listener) decode(kind int, data []byte, size int64) (relay.Notification, error) {
	switch {
	case size > int64(len(data)):
		return relay.Notification{}, fmt.Errorf("the message has %d bytes, %d are the most", size, l.options.MaxMessage)
	case kind != websocket.TextMessage:
		return relay.Notification{}, errors.New("the message is binary, not text")
	}
	return decode(data)
}

func (l *listener) skipMessage(data []byte, why error) {
	if l.options.OnSkipped != nil {
		l.options.OnSkipped(data, why)
		return
	}
	l.client.logger().Warn("a message that is not a notification was skipped", "error", why, "bytes", len(data))
}

// decode reads what routing needs and keeps the rest as it came. Names are compared exactly, unlike encoding/json does
// for a struct: an unknown member HUB_ID is not the hub.
func decode(data []byte) (relay.Notification, error) {
	var message, context map[string]json.RawMessage
	n := relay.Notification{Data: data}
	err := json.Unmarshal(data, &message)
	if err == nil && message["context"] != nil {
		err = json.Unmarshal(message["context"], &context)
	}
	for _, member := range []struct {
		value json.RawMessage
		into  *string
	}{
		{message["topic"], &n.Topic},
		{message["cursor"], &n.Cursor},
		{context["hub_id"], &n.Hub},
		{context["account_id"], &n.Account},
	} {
		if err == nil && member.value != nil {
			err = json.Unmarshal(member.value, member.into)
		}
	}
	if err == nil && n.Topic == "" {
		err = errors.New("the message has no topic")
	}
	return n, err
}
