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

// readMessage reads one message. If the message is too large but may be skipped, it returns the start and discards the
// rest. It calls alive while data arrives. The limit applies to the decompressed message. The limit of ws applies to
// the compressed data, and a small compressed message may become large.
func (l *listener) readMessage(ws *websocket.Conn, alive func()) (kind int, data []byte, size int64, err error) {
	kind, r, err := ws.NextReader()
	if err != nil {
		return 0, nil, 0, err
	}
	limit := min(l.options.MaxMessage, math.MaxInt64-1)
	data, err = io.ReadAll(io.LimitReader(r, limit))
	size = int64(len(data))
	for err == nil && size >= limit {
		var n int64
		alive()
		n, err = io.CopyN(io.Discard, r, 64<<10)
		size += n
		if size > limit && (l.options.OnSkipped == nil || size > max(limit, maxSkippedMessage)) {
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

// decode decodes a message of size bytes. data may be only its start.
func (l *listener) decode(kind int, data []byte, size int64) (relay.Notification, error) {
	switch {
	case size > int64(len(data)):
		err := fmt.Errorf("the message has %d bytes, the maximum is %d", size, l.options.MaxMessage)
		return relay.Notification{}, err
	case kind != websocket.TextMessage:
		return relay.Notification{}, errors.New("the message is binary, not text")
	}
	n, err := decodeNotification(data)
	if err == nil && l.options.Metadata {
		n.ID = decodeID(data)
	}
	return n, err
}

// decodeID returns the member "id", or an empty string if it is missing or not a string.
func decodeID(data []byte) string {
	var message map[string]json.RawMessage
	var id string
	if err := json.Unmarshal(data, &message); err != nil || json.Unmarshal(message["id"], &id) != nil {
		return ""
	}
	return id
}

func (l *listener) skipMessage(data []byte, reason error) {
	if l.options.OnSkipped != nil {
		l.options.OnSkipped(data, reason)
		return
	}
	l.client.logger().Warn("invalid message skipped", "error", reason, "bytes", len(data))
}

// decodeNotification decodes the members that routing needs, and leaves data unchanged. Unlike encoding/json with a
// struct, it is case-sensitive: an unknown member HUB_ID is not the hub.
func decodeNotification(data []byte) (relay.Notification, error) {
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
	switch {
	case err != nil:
	case n.Topic == "":
		err = errors.New("the message has no topic")
	case cursorSize(n.Cursor) > maxCursor:
		err = fmt.Errorf("the message has a cursor of %d bytes in a query; a cursor has at most %d", cursorSize(n.Cursor), maxCursor)
	}
	return n, err
}
