package backbone

import (
	"encoding/binary"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

// rawEntry is an entry as it was read. Its body is nil where only the pending id is left of it.
type rawEntry struct {
	id   string
	body []byte // fields and values in turn, each behind its length as a uvarint
}

func notificationsOf(entries []rawEntry) []relay.Notification {
	list := make([]relay.Notification, len(entries))
	for i, e := range entries {
		list[i] = e.toNotification()
	}
	return list
}

// toNotification reads a log entry. Our own fields come first and in order, but whoever writes to Redis may do otherwise.
func (e rawEntry) toNotification() relay.Notification {
	var all stringArena
	all.reserve(e.body)
	n := relay.Notification{Cursor: e.id}
	eachField(e.body, func(key, value []byte) bool {
		switch string(key) {
		case fieldID:
			n.ID = all.copyString(value)
		case "topic":
			n.Topic = all.copyString(value)
		case "hub":
			n.Hub = all.copyString(value)
		case "account":
			n.Account = all.copyString(value)
		case fieldData:
			n.Data = value
		}
		return true
	})
	return n
}

// cutField splits the first string off a body. A body that we made ourselves is always whole.
func cutField(body []byte) (field, rest []byte, ok bool) {
	n, size := binary.Uvarint(body)
	if size <= 0 || n > uint64(len(body)-size) {
		return nil, nil, false
	}
	end := size + int(n)
	return body[size:end:end], body[end:], true
}

// eachField calls each for every field of a body until it returns false.
func eachField(body []byte, each func(key, value []byte) bool) {
	for len(body) > 0 {
		key, rest, ok := cutField(body)
		if !ok {
			return
		}
		value, rest, ok := cutField(rest)
		if !ok || !each(key, value) {
			return
		}
		body = rest
	}
}

// stringArena is one piece of memory for all values of an entry but its data.
type stringArena struct{ all strings.Builder }

func (t *stringArena) reserve(body []byte) {
	size := 0
	eachField(body, func(key, value []byte) bool {
		if string(key) != fieldData {
			size += len(value)
		}
		return true
	})
	t.all.Grow(size)
}

// copyString returns a value as a text.
func (t *stringArena) copyString(value []byte) string {
	n := t.all.Len()
	_, _ = t.all.Write(value)
	return t.all.String()[n:]
}

// storedFrom is for the rare entries that go-redis has read.
func storedFrom(msgs []redis.XMessage) []rawEntry {
	list := make([]rawEntry, len(msgs))
	for i, m := range msgs {
		list[i].id = m.ID
		if m.Values == nil {
			continue
		}
		body := []byte{}
		for k, v := range m.Values {
			text, _ := v.(string)
			body = append(binary.AppendUvarint(body, uint64(len(k))), k...)
			body = append(binary.AppendUvarint(body, uint64(len(text))), text...)
		}
		list[i].body = body
	}
	return list
}

// toMap is for the rare entries that go to the quarantine.
func (e rawEntry) toMap() map[string]any {
	m := make(map[string]any)
	eachField(e.body, func(key, value []byte) bool {
		m[string(key)] = string(value)
		return true
	})
	return m
}
