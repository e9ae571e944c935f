package ingest

import (
	"strconv"
	"unicode"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/internal/jsontype"
	"github.com/hubrelay/hubrelay/relay"
)

func (f *decodeState) topMember(name []byte, start int) bool {
	switch string(name) {
	case "topic":
		return f.readTopic()
	case "object":
		return f.readObject("object", f.objectMember)
	case "context":
		f.contextGiven = f.peek() != 'n'
		return f.readObject("context", f.contextMember)
	case "flags", "cursor", "id", "time": // the relay sets them
		return f.scanValue()
	case relayPathMember:
		if f.relayed {
			return f.readVia()
		}
		return f.recordUnknown(&f.restTop, start)
	default:
		f.traced = f.traced || string(name) == "traceparent" || string(name) == "tracestate"
		return f.recordUnknown(&f.restTop, start)
	}
}

func (f *decodeState) objectMember(name []byte, start int) bool {
	switch string(name) {
	case "id":
		return f.readIdentifier(&f.object[0], "/object/id")
	case "state":
		return f.readWord(&f.object[1], "/object/state")
	case "error":
		return f.readWord(&f.object[2], "/object/error")
	default:
		return f.recordUnknown(&f.restObject, start)
	}
}

func (f *decodeState) contextMember(name []byte, start int) bool {
	switch string(name) {
	case "hub_id":
		return f.readIdentifier(&f.hub, "/context/hub_id")
	case "account_id":
		return f.readIdentifier(&f.account, "/context/account_id")
	case "environments":
		return f.readList(0, "/context/environments")
	case "dns_zones":
		return f.readList(1, "/context/dns_zones")
	case "clusters":
		return f.readList(2, "/context/clusters")
	case "containers":
		return f.readList(3, "/context/containers")
	default:
		return f.recordUnknown(&f.restContext, start)
	}
}

func (f *decodeState) recordUnknown(rest *[]byteSpan, start int) bool {
	if !f.scanValue() {
		return false
	}
	*rest = append(*rest, f.spanFrom(start))
	return true
}

// readObject reads an object of the envelope. Null counts as missing.
func (f *decodeState) readObject(name string, visit func([]byte, int) bool) bool {
	c := f.peek()
	if c == '{' {
		return f.scanObject(visit)
	}
	return f.readMissing("/"+name, "an object", c)
}

// readMissing reads a value of the wrong type that starts with c. Null counts as missing, other values are errors.
func (f *decodeState) readMissing(pointer, want string, c byte) bool {
	if !f.scanValue() {
		return false
	}
	if c != 'n' {
		f.setProblem(wrongType(pointer[1:], want, c).WithPointer(pointer))
	}
	return true
}

// readWord reads a string. Null counts as missing.
func (f *decodeState) readWord(w *stringField, pointer string) bool {
	start, c := f.pos, f.peek()
	if c != '"' {
		return f.readMissing(pointer, "a string", c)
	}
	t, ok := f.scanString()
	if !ok {
		return false
	}
	value, ok := f.unescapeString(t)
	if !ok {
		f.setProblem(
			relay.NewError(relay.CodeInvalidArgument, "the string has half of a surrogate pair").WithPointer(pointer),
		)
		return true
	}
	*w = stringField{span: f.spanFrom(start), value: value, given: true}
	return true
}

func (f *decodeState) readTopic() bool {
	var w stringField
	if !f.readWord(&w, "/topic") {
		return false
	}
	if !w.given {
		return true
	}
	f.topicGiven = true
	topic, ok := f.decoder.catalog.Lookup(w.value)
	if ok {
		f.topic = topic
	} else {
		f.setProblem(f.decoder.unknownTopic(string(w.value)))
	}
	return true
}

// readIdentifier reads an identifier. An empty string counts as missing; validate rejects an empty hub.
func (f *decodeState) readIdentifier(w *stringField, pointer string) bool {
	if !f.readWord(w, pointer) {
		return false
	}
	if problem := identifierProblem(w.value); w.given && len(w.value) > 0 && problem != "" {
		f.setProblem(relay.NewError(relay.CodeInvalidArgument, pointer[1:]+" "+problem).WithPointer(pointer))
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
func (f *decodeState) readList(index int, pointer string) bool {
	start, c := f.pos, f.peek()
	if c != '[' {
		return f.readMissing(pointer, "an array of strings", c)
	}
	ok := f.scanArray(func(i int) bool {
		c := f.peek()
		if c != '"' {
			if !f.scanValue() {
				return false
			}
			f.wrongElement(pointer, i, "must be a string, not "+jsontype.Name(c))
			return true
		}
		t, ok := f.scanString()
		if !ok {
			return false
		}
		value, ok := f.unescapeString(t)
		if !ok {
			f.wrongElement(pointer, i, "has half of a surrogate pair")
		} else if problem := identifierProblem(value); problem != "" {
			f.wrongElement(pointer, i, problem)
		}
		return true
	})
	f.lists[index] = f.spanFrom(start)
	return ok
}

func (f *decodeState) wrongElement(pointer string, index int, problem string) {
	if f.problem != nil {
		return
	}
	element := pointer + "/" + strconv.Itoa(index)
	f.setProblem(relay.NewError(relay.CodeInvalidArgument, element[1:]+" "+problem).WithPointer(element))
}

func (f *decodeState) setProblem(err *relay.Error) {
	if f.problem == nil {
		f.problem = err
	}
}
