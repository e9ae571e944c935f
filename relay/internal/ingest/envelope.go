package ingest

import (
	"strconv"
	"unicode"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/internal/jsontype"
	"github.com/hubrelay/hubrelay/relay"
)

func (d *decodeState) topMember(name []byte, start int) bool {
	switch string(name) {
	case "topic":
		return d.readTopic()
	case "object":
		return d.readObject("object", d.objectMember)
	case "context":
		d.contextGiven = d.peek() != 'n'
		return d.readObject("context", d.contextMember)
	case "flags", "cursor", "id", "time": // the relay sets them
		return d.scanValue()
	case relayPathMember:
		if d.relayed {
			return d.readVia()
		}
		return d.recordUnknown(&d.restTop, start)
	default:
		d.traced = d.traced || string(name) == "traceparent" || string(name) == "tracestate"
		return d.recordUnknown(&d.restTop, start)
	}
}

func (d *decodeState) objectMember(name []byte, start int) bool {
	switch string(name) {
	case "id":
		return d.readIdentifier(&d.object[0], "/object/id")
	case "state":
		return d.readWord(&d.object[1], "/object/state")
	case "error":
		return d.readWord(&d.object[2], "/object/error")
	default:
		return d.recordUnknown(&d.restObject, start)
	}
}

func (d *decodeState) contextMember(name []byte, start int) bool {
	switch string(name) {
	case "hub_id":
		return d.readIdentifier(&d.hub, "/context/hub_id")
	case "account_id":
		return d.readIdentifier(&d.account, "/context/account_id")
	case "environments":
		return d.readList(0, "/context/environments")
	case "dns_zones":
		return d.readList(1, "/context/dns_zones")
	case "clusters":
		return d.readList(2, "/context/clusters")
	case "containers":
		return d.readList(3, "/context/containers")
	default:
		return d.recordUnknown(&d.restContext, start)
	}
}

func (d *decodeState) recordUnknown(rest *[]byteSpan, start int) bool {
	if !d.scanValue() {
		return false
	}
	*rest = append(*rest, d.spanFrom(start))
	return true
}

// readObject reads an object of the envelope. Null counts as missing.
func (d *decodeState) readObject(name string, visit func([]byte, int) bool) bool {
	c := d.peek()
	if c == '{' {
		return d.scanObject(visit)
	}
	return d.readMissing("/"+name, "an object", c)
}

// readMissing reads a value of the wrong type that starts with c. Null counts as missing, other values are errors.
func (d *decodeState) readMissing(pointer, want string, c byte) bool {
	if !d.scanValue() {
		return false
	}
	if c != 'n' {
		d.setProblem(wrongType(pointer[1:], want, c).WithPointer(pointer))
	}
	return true
}

// readWord reads a string. Null counts as missing.
func (d *decodeState) readWord(w *stringField, pointer string) bool {
	start, c := d.pos, d.peek()
	if c != '"' {
		return d.readMissing(pointer, "a string", c)
	}
	t, ok := d.scanString()
	if !ok {
		return false
	}
	value, ok := d.unescapeString(t)
	if !ok {
		d.setProblem(
			relay.NewError(relay.CodeInvalidArgument, "the string has half of a surrogate pair").WithPointer(pointer),
		)
		return true
	}
	*w = stringField{span: d.spanFrom(start), value: value, given: true}
	return true
}

func (d *decodeState) readTopic() bool {
	var w stringField
	if !d.readWord(&w, "/topic") {
		return false
	}
	if !w.given {
		return true
	}
	d.topicGiven = true
	topic, ok := d.decoder.catalog.Lookup(w.value)
	if ok {
		d.topic = topic
	} else {
		d.setProblem(d.decoder.unknownTopic(string(w.value)))
	}
	return true
}

// readIdentifier reads an identifier. An empty string counts as missing; validate rejects an empty hub.
func (d *decodeState) readIdentifier(w *stringField, pointer string) bool {
	if !d.readWord(w, pointer) {
		return false
	}
	if problem := identifierProblem(w.value); w.given && len(w.value) > 0 && problem != "" {
		d.setProblem(relay.NewError(relay.CodeInvalidArgument, pointer[1:]+" "+problem).WithPointer(pointer))
	}
	return true
}

func identifierProblem(id []byte) string {
	if len(id) == 0 {
		return "is empty"
	}
	if len(id) > MaxIdentifier {
		return "is longer than " + strconv.Itoa(MaxIdentifier) + " bytes"
	}
	for i := 0; i < len(id); {
		if c := id[i]; c < utf8.RuneSelf {
			if c < ' ' || c == 0x7f {
				return "has a control character"
			}
			i++
			continue
		}
		r, size := utf8.DecodeRune(id[i:])
		if unicode.IsControl(r) {
			return "has a control character"
		}
		i += size
	}
	return ""
}

// readList reads an array of identifiers. Null counts as missing.
func (d *decodeState) readList(index int, pointer string) bool {
	start, c := d.pos, d.peek()
	if c != '[' {
		return d.readMissing(pointer, "an array of strings", c)
	}
	ok := d.scanArray(func(i int) bool {
		c := d.peek()
		if c != '"' {
			if !d.scanValue() {
				return false
			}
			d.wrongElement(pointer, i, "must be a string, not "+jsontype.Name(c))
			return true
		}
		t, ok := d.scanString()
		if !ok {
			return false
		}
		value, ok := d.unescapeString(t)
		if !ok {
			d.wrongElement(pointer, i, "has half of a surrogate pair")
		} else if problem := identifierProblem(value); problem != "" {
			d.wrongElement(pointer, i, problem)
		}
		return true
	})
	d.lists[index] = d.spanFrom(start)
	return ok
}

func (d *decodeState) wrongElement(pointer string, index int, problem string) {
	if d.problem != nil {
		return
	}
	element := pointer + "/" + strconv.Itoa(index)
	d.setProblem(relay.NewError(relay.CodeInvalidArgument, element[1:]+" "+problem).WithPointer(element))
}

func (d *decodeState) setProblem(err *relay.Error) {
	if d.problem == nil {
		d.problem = err
	}
}
