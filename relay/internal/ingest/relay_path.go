package ingest

import (
	"bytes"
	"fmt"

	"github.com/hubrelay/hubrelay/internal/jsontype"
	"github.com/hubrelay/hubrelay/relay"
)

// readVia reads the list of relays that a notification has passed.
func (d *decodeState) readVia() bool {
	const pointer = "/" + relayPathMember
	c := d.peek()
	if c != '[' {
		return d.readMissing(pointer, "an array of strings", c)
	}
	start := d.pos
	ok := d.scanArray(func(i int) bool {
		d.hops = i + 1
		if c := d.peek(); c != '"' {
			d.wrongElement(pointer, i, "must be a string, not "+jsontype.Name(c))
			return d.scanValue()
		}
		t, ok := d.scanString()
		if !ok {
			return false
		}
		value, ok := d.unescapeString(t)
		if problem := identifierProblem(value); !ok || problem != "" {
			d.wrongElement(pointer, i, "is not the name of a relay")
		}
		d.returned = d.returned || d.hop.Self != "" && string(value) == d.hop.Self
		return true
	})
	d.via = d.spanFrom(start)
	if d.hops >= maxHops {
		d.setProblem(relay.NewError(relay.CodeInvalidArgument,
			fmt.Sprintf("the event has passed %d relays, which looks like a loop", d.hops)).WithPointer(pointer))
	}
	return ok
}

// appendVia appends the list, extended by the relay that sent the notification, if any.
func (d *decodeState) appendVia(b []byte) []byte {
	if d.hops == 0 && d.hop.From == "" {
		return b
	}
	b = append(b, `,"`+relayPathMember+`":[`...)
	if d.hops > 0 {
		list := appendCompact(nil, d.data[d.via.start:d.via.end])
		b = append(b, bytes.TrimSuffix(list[1:], []byte("]"))...)
	}
	if d.hop.From != "" {
		if d.hops > 0 {
			b = append(b, ',')
		}
		b = appendQuoted(b, d.hop.From)
	}
	return append(b, ']')
}
