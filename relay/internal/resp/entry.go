package resp

import (
	"encoding/binary"
	"strings"
)

// Entry is an entry of a stream.
type Entry struct {
	ID string
	// Body contains fields and values in turn, each after its length as a uvarint; see [EachField]. It is nil if a
	// pending ID has no entry.
	Body []byte
	// Omitted is the number of bytes that are not in Body because of [Conn.LimitEntries].
	Omitted int64
}

// LargestBody returns the size of the largest body of a list of entries, in bytes, or 0.
func LargestBody(entries []Entry) int {
	largest := 0
	for i := range entries {
		largest = max(largest, len(entries[i].Body))
	}
	return largest
}

// ToMap returns the fields as go-redis does. It is slow.
func (e Entry) ToMap() map[string]any {
	m := make(map[string]any)
	EachField(e.Body, func(key, value []byte) bool {
		m[string(key)] = string(value)
		return true
	})
	return m
}

// EachField calls each for every field of a body until it returns false. It ignores what follows a malformed field.
func EachField(body []byte, each func(key, value []byte) bool) {
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

func cutField(body []byte) (field, rest []byte, ok bool) {
	n, size := binary.Uvarint(body)
	if size <= 0 || n > uint64(len(body)-size) {
		return nil, nil, false
	}
	end := size + int(n)
	return body[size:end:end], body[end:], true
}

// The fields of an entry of a log or queue that every reader knows.
const (
	FieldID   = "id"
	FieldData = "data"
)

// StringArena stores all values of an entry except its data in one allocation.
type StringArena struct{ b strings.Builder }

// Grow allocates the memory for the values of a body. Call it once, before the first Copy.
func (a *StringArena) Grow(body []byte) {
	size := 0
	EachField(body, func(key, value []byte) bool {
		if string(key) != FieldData {
			size += len(value)
		}
		return true
	})
	a.b.Grow(size)
}

// Copy returns a value as a string.
func (a *StringArena) Copy(value []byte) string {
	n := a.b.Len()
	_, _ = a.b.Write(value)
	return a.b.String()[n:]
}
