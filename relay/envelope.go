package relay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Envelope decodes Data. Unlike encoding/json it matches names exactly, so a member such as "HUB_ID" cannot
// replace the hub. If a name is repeated, the last one wins. Envelope fails only for data that ingest has not
// validated.
func (n Notification) Envelope() (Envelope, error) {
	var e Envelope
	if err := e.decode(n.Data); err != nil {
		return Envelope{}, fmt.Errorf("decode event %s: %w", n.ID, err)
	}
	return e, nil
}

// decode walks over data by hand, which takes a fraction of the time of encoding/json. The helpers rely on valid
// JSON, so it is checked first.
func (e *Envelope) decode(data []byte) error {
	if !json.Valid(data) {
		var anything any
		if err := json.Unmarshal(data, &anything); err != nil {
			return err
		}
		return errors.New("invalid JSON")
	}
	var topic, object, context []byte
	err := forEachMember(data, func(name, value []byte) {
		switch string(name) {
		case "topic":
			topic = value
		case "object":
			object = value
		case "context":
			context = value
		}
	})
	if err == nil {
		e.Topic, err = decodeString(topic)
	}
	if err == nil {
		err = e.Object.decode(object)
	}
	if err == nil {
		err = e.Context.decode(context)
	}
	return err
}

func (o *Object) decode(data []byte) error {
	var id, state, problem []byte
	err := forEachMember(data, func(name, value []byte) {
		switch string(name) {
		case "id":
			id = value
		case "state":
			state = value
		case "error":
			problem = value
		}
	})
	if err == nil {
		o.ID, err = decodeString(id)
	}
	if err == nil {
		o.State, err = decodeString(state)
	}
	if err == nil {
		o.Error, err = decodeString(problem)
	}
	return err
}

func (c *Context) decode(data []byte) (err error) {
	var hub, account []byte
	var lists [4][]byte
	err = forEachMember(data, func(name, value []byte) {
		switch string(name) {
		case "hub_id":
			hub = value
		case "account_id":
			account = value
		case "environments":
			lists[0] = value
		case "dns_zones":
			lists[1] = value
		case "clusters":
			lists[2] = value
		case "containers":
			lists[3] = value
		}
	})
	if err == nil {
		c.HubID, err = decodeString(hub)
	}
	if err == nil {
		c.AccountID, err = decodeString(account)
	}
	for i, into := range [...]*[]string{&c.Environments, &c.DNSZones, &c.Clusters, &c.Containers} {
		if err == nil {
			*into, err = decodeStrings(lists[i])
		}
	}
	return err
}

// forEachMember calls each with every member of a JSON object. For null it does nothing. Values are slices of
// data.
func forEachMember(data []byte, each func(name, value []byte)) error {
	data = trimLeftSpace(data)
	if string(bytes.TrimRight(data, space)) == "null" {
		return nil
	}
	if len(data) == 0 || data[0] != '{' {
		return errors.New("a member is not an object")
	}
	for data = skipToken(data); data[0] != '}'; {
		end := valueEnd(data)
		name := data[1 : end-1]
		if bytes.IndexByte(name, '\\') >= 0 {
			unescaped, err := decodeString(data[:end])
			if err != nil {
				return err
			}
			name = []byte(unescaped)
		}
		data = skipToken(trimLeftSpace(data[end:])) // the colon
		end = valueEnd(data)
		each(name, data[:end])
		if data = trimLeftSpace(data[end:]); data[0] == ',' {
			data = skipToken(data)
		}
	}
	return nil
}

const space = " \t\r\n"

// skipToken skips the first byte and the white space after it.
func skipToken(data []byte) []byte { return trimLeftSpace(data[1:]) }

// trimLeftSpace skips leading white space.
func trimLeftSpace(data []byte) []byte {
	for i, c := range data {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return data[i:]
		}
	}
	return nil
}

// valueEnd returns the end of the value at the start of data, which must be valid JSON.
func valueEnd(data []byte) int {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = stringEnd(data, i) - 1
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth == 0 {
				return i // end of a number, true, false or null
			}
			depth--
		case ',', ' ', '\t', '\r', '\n', ':':
			if depth == 0 {
				return i
			}
			continue
		default:
			continue
		}
		if depth == 0 {
			return i + 1
		}
	}
	return len(data)
}

// stringEnd returns the end of the string that starts at start.
func stringEnd(data []byte, start int) int {
	for i := start + 1; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(data)
}

// decodeString decodes a string. It returns "" for null or no value.
func decodeString(value []byte) (string, error) {
	switch {
	case len(value) == 0:
		return "", nil
	case value[0] == '"' && bytes.IndexByte(value, '\\') < 0 && utf8.Valid(value):
		return string(value[1 : len(value)-1]), nil
	}
	var s string
	err := json.Unmarshal(value, &s)
	return s, err
}

// decodeStrings decodes a list of strings. It returns nil for null or no value.
func decodeStrings(value []byte) ([]string, error) {
	switch {
	case len(value) == 0 || string(value) == "null":
		return nil, nil
	case value[0] != '[':
		return nil, errors.New("a member is not a list")
	}
	list := make([]string, 0, 1+bytes.Count(value, []byte(",")))
	for rest := skipToken(value); rest[0] != ']'; {
		end := valueEnd(rest)
		one, err := decodeString(rest[:end])
		if err != nil {
			return nil, err
		}
		list = append(list, one)
		if rest = trimLeftSpace(rest[end:]); rest[0] == ',' {
			rest = skipToken(rest)
		}
	}
	return list, nil
}
