package relay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Envelope decodes Data. Names are compared exactly, unlike encoding/json does, so that an unknown member such as
// "HUB_ID" cannot pose as another hub; of a name that is given twice the last one counts. It fails only for a
// Notification that did not come through the ingest.
func (n Notification) Envelope() (Envelope, error) {
	var e Envelope
	if err := e.decode(n.Data); err != nil {
		return Envelope{}, fmt.Errorf("decode notification %s: %w", n.ID, err)
	}
	return e, nil
}

// decode walks over data by hand, which takes a fraction of what encoding/json takes for it. It relies on data being
// valid, which is looked at first.
func (e *Envelope) decode(data []byte) error {
	if !json.Valid(data) {
		var anything any
		if err := json.Unmarshal(data, &anything); err != nil {
			return err
		}
		return errors.New("is not valid JSON")
	}
	var topic, object, context []byte
	err := members(data, func(name, value []byte) {
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
		e.Topic, err = text(topic)
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
	err := members(data, func(name, value []byte) {
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
		o.ID, err = text(id)
	}
	if err == nil {
		o.State, err = text(state)
	}
	if err == nil {
		o.Error, err = text(problem)
	}
	return err
}

func (c *Context) decode(data []byte) (err error) {
	var hub, account []byte
	var lists [4][]byte
	err = members(data, func(name, value []byte) {
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
		c.HubID, err = text(hub)
	}
	if err == nil {
		c.AccountID, err = text(account)
	}
	for i, into := range [...]*[]string{&c.Environments, &c.DNSZones, &c.Clusters, &c.Containers} {
		if err == nil {
			*into, err = texts(lists[i])
		}
	}
	return err
}

// members calls each with every member of a JSON object; null has none. The values are parts of data.
func members(data []byte, each func(name, value []byte)) error {
	data = trimmed(data)
	if string(bytes.TrimRight(data, space)) == "null" {
		return nil
	}
	if len(data) == 0 || data[0] != '{' {
		return errors.New("a part of it is not an object")
	}
	for data = next(data); data[0] != '}'; {
		end := valueEnd(data)
		name := data[1 : end-1]
		if bytes.IndexByte(name, '\\') >= 0 {
			unescaped, err := text(data[:end])
			if err != nil {
				return err
			}
			name = []byte(unescaped)
		}
		data = next(trimmed(data[end:])) // the colon
		end = valueEnd(data)
		each(name, data[:end])
		if data = trimmed(data[end:]); data[0] == ',' {
			data = next(data)
		}
	}
	return nil
}

const space = " \t\r\n"

// next leaves out the first byte and the white space behind it.
func next(data []byte) []byte { return trimmed(data[1:]) }

// trimmed leaves out white space in front.
func trimmed(data []byte) []byte {
	for i, c := range data {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return data[i:]
		}
	}
	return nil
}

// valueEnd returns where the value ends that valid JSON begins with.
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
				return i // of a number, true, false or null
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

// stringEnd returns where the string ends that begins at a place.
func stringEnd(data []byte, at int) int {
	for i := at + 1; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(data)
}

// text decodes a string; null and nothing are empty.
func text(value []byte) (string, error) {
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

// texts decodes a list of strings; null and nothing are nil.
func texts(value []byte) ([]string, error) {
	switch {
	case len(value) == 0 || string(value) == "null":
		return nil, nil
	case value[0] != '[':
		return nil, errors.New("a part of it is not a list")
	}
	list := make([]string, 0, 1+bytes.Count(value, []byte(",")))
	for rest := next(value); rest[0] != ']'; {
		end := valueEnd(rest)
		one, err := text(rest[:end])
		if err != nil {
			return nil, err
		}
		list = append(list, one)
		if rest = trimmed(rest[end:]); rest[0] == ',' {
			rest = next(rest)
		}
	}
	return list, nil
}
