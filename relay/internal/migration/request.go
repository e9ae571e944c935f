package migration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/jsontype"
	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
)

// actionMigrate is the only supported action (docs/specification.md, "Migrate an instance").
const actionMigrate = "migrate"

// maxRequest is the maximum size of a request in bytes. A valid one is much smaller, and checking a larger one takes long.
const maxRequest = 64 << 10

// maxServerID is the maximum length of a server ID in a request, in bytes.
const maxServerID = 256

// migrateRequest is the decoded body of a request.
type migrateRequest struct {
	destination string
	copyVolumes bool
}

// parseMigrateRequest decodes the body of a request. It rejects unknown members, except in value.stateful, whose
// members docs/specification.md leaves open. They have no effect.
func parseMigrateRequest(contentType string, body []byte) (migrateRequest, *relay.Error) {
	var in migrateRequest
	if err := checkContentType(contentType); err != nil {
		return in, err
	}
	if err := checkSyntax(body); err != nil {
		return in, err
	}
	top, err := decodeObject(body, "", "action", "value")
	if err != nil {
		return in, err
	}
	action, err := requiredString(top, "", "action")
	if err != nil {
		return in, err
	}
	if action != actionMigrate {
		return in, relay.NewError(relay.CodeInvalidArgument,
			"action "+strconv.Quote(relay.Truncate(
				action, 60,
			))+" is not supported; the only action is "+strconv.Quote(actionMigrate)).WithPointer("/action")
	}
	if top["value"] == nil {
		return in, missingArgument("", "value")
	}
	value, err := decodeObject(top["value"], "/value", "destination_server_id", "stateful")
	if err != nil {
		return in, err
	}
	if in.destination, err = requiredString(value, "/value", "destination_server_id"); err != nil {
		return in, err
	}
	if err := checkServerID(in.destination, "/value/destination_server_id"); err != nil {
		return in, err
	}
	if value["stateful"] == nil || isNull(value["stateful"]) {
		return in, nil
	}
	return in, in.parseStateful(value["stateful"])
}

func checkServerID(id, pointer string) *relay.Error {
	if len(id) <= maxServerID {
		return nil
	}
	return relay.NewError(relay.CodeInvalidArgument, fmt.Sprintf("%s has %d bytes, the maximum is %d",
		pointer[strings.LastIndexByte(pointer, '/')+1:], len(id), maxServerID)).WithPointer(pointer)
}

func (m *migrateRequest) parseStateful(text []byte) *relay.Error {
	members, err := decodeObject(text, "/value/stateful")
	if err != nil {
		return err
	}
	if flag, ok := members["copy_volumes"]; ok && !isNull(flag) {
		if err := json.Unmarshal(flag, &m.copyVolumes); err != nil {
			return wrongType("/value/stateful/copy_volumes", "true or false", flag)
		}
	}
	return nil
}

func checkContentType(contentType string) *relay.Error {
	kind, params, err := mime.ParseMediaType(contentType)
	charset := strings.ToLower(params["charset"])
	if err != nil || kind != "application/json" || charset != "" && charset != "utf-8" {
		return relay.NewError(relay.CodeInvalidContentType,
			"Content-Type must be application/json, not "+strconv.Quote(relay.Truncate(contentType, 100)))
	}
	return nil
}

// checkSyntax rejects invalid JSON and duplicate members, which are ambiguous.
func checkSyntax(body []byte) *relay.Error {
	if len(bytes.TrimSpace(body)) == 0 {
		return relay.NewError(relay.CodeInvalidSyntax, "the body is empty; it must be an object such as "+
			`{"action":"migrate","value":{"destination_server_id":"…"}}`)
	}
	var anything json.RawMessage // Numbers may exceed the range of Go types.
	err := json.Unmarshal(body, &anything)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return relay.NewError(relay.CodeInvalidSyntax,
			fmt.Sprintf("the body is not JSON: %s at byte %d", syntax.Error(), syntax.Offset))
	case err != nil:
		return relay.NewError(relay.CodeInvalidSyntax, "the body is not JSON: "+err.Error())
	}
	tokens := json.NewDecoder(bytes.NewReader(body))
	tokens.UseNumber()
	if path := duplicateMember(tokens); path != nil {
		return relay.NewError(relay.CodeInvalidArgument, "duplicate member").WithPointer(pointerTo(path))
	}
	return nil
}

// decodeObject decodes an object. If known is not empty, it rejects other members.
func decodeObject(text []byte, pointer string, known ...string) (map[string]json.RawMessage, *relay.Error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || members == nil {
		return nil, wrongType(pointer, "an object", text)
	}
	if len(known) == 0 {
		return members, nil
	}
	for name := range members {
		if !slices.Contains(known, name) {
			hint := "the members are " + strings.Join(known, " and ")
			if near := suggest.ClosestName(name, known); near != "" {
				hint = "did you mean " + near + "?"
			}
			return nil, relay.NewError(relay.CodeInvalidArgument,
				"the member "+strconv.Quote(relay.Truncate(name, 60))+" is unknown; "+hint).WithPointer(
				pointer + relay.JSONPointer(relay.Truncate(name, 200)),
			)
		}
	}
	return members, nil
}

// requiredString decodes a string that must not be empty.
func requiredString(members map[string]json.RawMessage, pointer, name string) (string, *relay.Error) {
	text := members[name]
	if text == nil || isNull(text) {
		return "", missingArgument(pointer, name)
	}
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return "", wrongType(pointer+relay.JSONPointer(name), "a string", text)
	}
	if s == "" {
		return "", relay.NewError(relay.CodeMissingArgument,
			name+" is empty").WithPointer(pointer + relay.JSONPointer(name))
	}
	return s, nil
}

func missingArgument(pointer, name string) *relay.Error {
	return relay.NewError(relay.CodeMissingArgument, name+" is missing").WithPointer(pointer + relay.JSONPointer(name))
}

func isNull(text []byte) bool { return string(bytes.TrimSpace(text)) == "null" }

func wrongType(pointer, want string, text []byte) *relay.Error {
	name := "the body"
	if pointer != "" {
		name = pointer[strings.LastIndexByte(pointer, '/')+1:]
	}
	return relay.NewError(relay.CodeInvalidArgument,
		name+" must be "+want+", not "+jsontype.Name(bytes.TrimSpace(text)[0])).WithPointer(pointer)
}

// maxPointer is the maximum length of the pointer to a duplicate member, in bytes.
const maxPointer = 300

// pointerTo returns the JSON pointer of a path, the innermost name first.
func pointerTo(path []string) string {
	var pointer strings.Builder
	for _, name := range slices.Backward(path) {
		if pointer.WriteString(relay.JSONPointer(name)); pointer.Len() > maxPointer {
			break
		}
	}
	return relay.Truncate(pointer.String(), maxPointer)
}

// duplicateMember returns the path of the first duplicate member in valid JSON, the innermost name first, or nil.
func duplicateMember(d *json.Decoder) (path []string) {
	token, err := d.Token()
	if err != nil {
		return nil
	}
	switch token {
	case json.Delim('{'):
		seen := make(map[string]bool)
		for d.More() {
			token, err := d.Token()
			name, ok := token.(string)
			if err != nil || !ok {
				return nil
			}
			if seen[name] {
				return []string{name}
			}
			seen[name] = true
			if in := duplicateMember(d); in != nil {
				return append(in, name)
			}
		}
	case json.Delim('['):
		for i := 0; d.More(); i++ {
			if in := duplicateMember(d); in != nil {
				return append(in, strconv.Itoa(i))
			}
		}
	default:
		return nil
	}
	_, _ = d.Token() // the end
	return nil
}
