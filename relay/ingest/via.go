package ingest

import (
	"bytes"
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
)

// readVia reads the list of relays that a notification has come through.
func (f *frame) readVia() bool {
	const pointer = "/" + viaMember
	c := f.peek()
	if c != '[' {
		return f.missing(pointer, "an array of strings", c)
	}
	start := f.pos
	ok := f.elements(func(i int) bool {
		f.hops = i + 1
		if c := f.peek(); c != '"' {
			f.wrongElement(pointer, i, "must be a string, not "+relay.JSONKind(c))
			return f.value()
		}
		t, ok := f.str()
		if !ok {
			return false
		}
		value, ok := f.decoded(t)
		if problem := identifierProblem(value); !ok || problem != "" {
			f.wrongElement(pointer, i, "is no name of a relay")
		}
		f.returned = f.returned || f.hop.Self != "" && string(value) == f.hop.Self
		return true
	})
	f.via = f.spanFrom(start)
	if f.hops >= maxHops {
		f.wrong(relay.NewError(relay.CodeInvalidArgument,
			fmt.Sprintf("the notification has come through %d relays, which looks like a circle", f.hops)).At(pointer))
	}
	return ok
}

// appendVia appends the list with the relay that sent the notification on, if there is one.
func (f *frame) appendVia(b []byte) []byte {
	if f.hops == 0 && f.hop.From == "" {
		return b
	}
	b = append(b, `,"`+viaMember+`":[`...)
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
