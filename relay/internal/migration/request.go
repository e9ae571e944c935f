package migration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// actionMigrate is the only action there is (spec.md, "Migrate an instance").
const actionMigrate = "migrate"

// maxServerID bounds what is looked up, in bytes.
const maxServerID = 256

// maxOptions bounds what is kept of value.stateful, in bytes.
const maxOptions = 16 << 10

// migrateRequest is the body of a request.
type migrateRequest struct {
	destination string
	copyVolumes bool
	options     json.RawMessage
}

// parseMigrateRequest reads the body of a request. It refuses unknown members, but in value.stateful, whose other fields
// spec.md leaves open.
func parseMigrateRequest(contentType string, body []byte) (migrateRequest, *relay.Error) {
	var in migrateRequest
	if refused := checkContentType(contentType); refused != nil {
		return in, refused
	}
	if refused := checkSyntax(body); refused != nil {
		return in, refused
	}
	top, refused := decodeObject(body, "", "action", "value")
	if refused != nil {
		return in, refused
	}
	action, refused := requiredString(top, "", "action")
	if refused != nil {
		return in, refused
	}
	if action != actionMigrate {
		return in, relay.NewError(relay.CodeInvalidArgument,
			"action "+strconv.Quote(relay.Truncate(action, 60))+" is not known here; the only one is "+strconv.Quote(actionMigrate)).WithPointer("/action")
	}
	if top["value"] == nil {
		return in, missingArgument("", "value")
	}
	value, refused := decodeObject(top["value"], "/value", "destination_server_id", "stateful")
	if refused != nil {
		return in, refused
	}
	if in.destination, refused = requiredString(value, "/value", "destination_server_id"); refused != nil {
		return in, refused
	}
	if len(in.destination) > maxServerID {
		return in, relay.NewError(relay.CodeInvalidArgument,
			fmt.Sprintf("destination_server_id has %d bytes, at most %d are possible", len(in.destination), maxServerID)).WithPointer("/value/destination_server_id")
	}
	if value["stateful"] == nil || isNull(value["stateful"]) {
		return in, nil
	}
	return in, in.parseStateful(value["stateful"])
}

func (in *migrateRequest) parseStateful(text []byte) *relay.Error {
	members, refused := decodeObject(text, "/value/stateful")
	if refused != nil {
		return refused
	}
	if flag, ok := members["copy_volumes"]; ok && !isNull(flag) {
		if err := json.Unmarshal(flag, &in.copyVolumes); err != nil {
			return wrongType("/value/stateful/copy_volumes", "true or false", flag)
		}
	}
	delete(members, "copy_volumes")
	if len(text) > maxOptions {
		return relay.NewError(relay.CodeInvalidArgument,
			fmt.Sprintf("stateful has %d bytes, at most %d are kept with a job", len(text), maxOptions)).WithPointer("/value/stateful")
	}
	if len(members) > 0 {
		in.options, _ = json.Marshal(members) // of what was decoded
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

// checkSyntax finds what is no JSON, and members that stand there twice: of those nobody knows which is meant.
func checkSyntax(body []byte) *relay.Error {
	if len(bytes.TrimSpace(body)) == 0 {
		return relay.NewError(relay.CodeInvalidSyntax, `the body is empty; it must be an object such as {"action":"migrate","value":{"destination_server_id":"…"}}`)
	}
	var anything json.RawMessage // its numbers may be larger than ours
	err := json.Unmarshal(body, &anything)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return relay.NewError(relay.CodeInvalidSyntax, fmt.Sprintf("the body is not JSON: %s at byte %d", syntax.Error(), syntax.Offset))
	case err != nil:
		return relay.NewError(relay.CodeInvalidSyntax, "the body is not JSON: "+err.Error())
	}
	tokens := json.NewDecoder(bytes.NewReader(body))
	tokens.UseNumber()
	if name := duplicateMember(tokens); name != "" {
		return relay.NewError(relay.CodeInvalidArgument, "a member stands there twice: it is not known which one is meant").WithPointer(relay.Truncate(name, 300))
	}
	return nil
}

// decodeObject decodes an object whose members are known, where any are named.
func decodeObject(text []byte, at string, known ...string) (map[string]json.RawMessage, *relay.Error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || members == nil {
		return nil, wrongType(at, "an object", text)
	}
	if len(known) == 0 {
		return members, nil
	}
	for name := range members {
		if !slices.Contains(known, name) {
			hint := "possible are " + strings.Join(known, " and ")
			if near := relay.ClosestName(name, known); near != "" {
				hint = "did you mean " + near + "?"
			}
			return nil, relay.NewError(relay.CodeInvalidArgument,
				"the member "+strconv.Quote(relay.Truncate(name, 60))+" is not known; "+hint).WithPointer(at + relay.JSONPointer(relay.Truncate(name, 200)))
		}
	}
	return members, nil
}

// requiredString decodes a string that must be there and not be empty.
func requiredString(members map[string]json.RawMessage, at, name string) (string, *relay.Error) {
	text := members[name]
	if text == nil || isNull(text) {
		return "", missingArgument(at, name)
	}
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return "", wrongType(at+relay.JSONPointer(name), "a string", text)
	}
	if s == "" {
		return "", relay.NewError(relay.CodeMissingArgument, name+" is empty").WithPointer(at + relay.JSONPointer(name))
	}
	return s, nil
}

func missingArgument(at, name string) *relay.Error {
	return relay.NewError(relay.CodeMissingArgument, name+" is missing").WithPointer(at + relay.JSONPointer(name))
}

func isNull(text []byte) bool { return string(bytes.TrimSpace(text)) == "null" }

func wrongType(at, wanted string, text []byte) *relay.Error {
	what := "the body"
	if at != "" {
		what = at[strings.LastIndexByte(at, '/')+1:]
	}
	return relay.NewError(relay.CodeInvalidArgument, what+" must be "+wanted+", not "+relay.JSONTypeName(bytes.TrimSpace(text)[0])).WithPointer(at)
}

// duplicateMember returns the pointer of the first member that an object of valid JSON has twice, "" for none.
func duplicateMember(d *json.Decoder) string {
	token, err := d.Token()
	if err != nil {
		return ""
	}
	switch token {
	case json.Delim('{'):
		seen := make(map[string]bool)
		for d.More() {
			token, err := d.Token()
			name, ok := token.(string)
			if err != nil || !ok {
				return ""
			}
			if seen[name] {
				return relay.JSONPointer(name)
			}
			seen[name] = true
			if in := duplicateMember(d); in != "" {
				return relay.JSONPointer(name) + in
			}
		}
	case json.Delim('['):
		for i := 0; d.More(); i++ {
			if in := duplicateMember(d); in != "" {
				return relay.JSONPointer(strconv.Itoa(i)) + in
			}
		}
	default:
		return ""
	}
	if _, err := d.Token(); err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return ""
}
