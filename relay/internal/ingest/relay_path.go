package ingest

import (
	"bytes"
	"fmt"

	"github.com/hubrelay/hubrelay/internal/jsontype"
	"github.com/hubrelay/hubrelay/relay"
)

// readVia reads the list of relays that a notification has passed.
func (f *decodeState) readVia() bool {
	const pointer = "/" + relayPathMember
	c := f.peek()
	if c != '[' {
		return f.readMissing(pointer, "an array of strings", c)
	}
	start := f.pos
	ok := f.scanArray(func(i int) bool {
		f.hops = i + 1
		if c := f.peek(); c != '"' {
			f.wrongElement(pointer, i, "must be a string, not "+jsontype.Name(c))
			return f.scanValue()
		}
		t, ok := f.scanString()
		if !ok {
			return false
		}
		value, ok := f.unescapeString(t)
		if problem := identifierProblem(value); !ok || problem != "" {
			f.wrongElement(pointer, i, "is not the name of a relay")
		}
		f.returned = f.returned || f.hop.Self != "" && string(value) == f.hop.Self
		return true
	})
	f.via = f.spanFrom(start)
	if f.hops >= maxHops {
		f.setProblem(relay.NewError(relay.CodeInvalidArgument,
			fmt.Sprintf("the event has passed %d relays, which looks like a loop", f.hops)).WithPointer(pointer))
	}
	return ok
}

// appendVia appends the list, extended by the relay that sent the notification, if any.
func (f *decodeState) appendVia(b []byte) []byte {
	if f.hops == 0 && f.hop.From == "" {
		return b
	}
	b = append(b, `,"`+relayPathMember+`":[`...)
	if f.hops > 0 {
		list := appendCompact(nil, f.data[f.via.start:f.via.end])
		b = append(b, bytes.TrimSuffix(list[1:], []byte("]"))...)
	}
	if f.hop.From != "" {
		if f.hops > 0 {
			b = append(b, ',')
		}
		b = appendQuoted(b, f.hop.From)
	}
	return append(b, ']')
}
