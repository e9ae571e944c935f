package ingest

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func seeds() []string {
	return []string{
		typical,
		`{"topic":"job.created","object":{"id":"o","n":12345678901234567890},"context":{"hub_id":"h",` +
			`"x":{"a":[1.5e-7,"\u00e9\ud83d\ude00\ud800",{}]}},"v":[]}`,
		"{ \"topic\" : \"job.created\",\r\n\"context\":{ \"hub_id\" : \"h\", \"clusters\" : [ \"a\" , \"\\\\\" " +
			"], \"y\\\"\" : [ \" \" ] } }",
		`{"topic":"job.created","context":{"hub_id":"h","A":1,"a":2,"\u0061":3}}`,
		`{"topic":"job.created","context":{"hub_id":"` + "\xc3\x28" + `"}}`,
		`{"topic":"job.created","object":null,"context":{"hub_id":"h","account_id":"","containers":null}}`,
		`[[[[[[[[[[[[[`, `{"":{"":{"":1}}}`, `-0`, `1e`, "\xef\xbb\xbf{}", `{"topic":"job.created",` +
			`"context":{"hub_id":"\ud83d"}}`,
	}
}

// FuzzDecode checks that only JSON is accepted, that the result is in the normal form, and that nothing is lost.
func FuzzDecode(f *testing.F) {
	for _, s := range seeds() {
		f.Add([]byte(s))
	}
	d := newDecoder(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := d.Decode(data, Defaults{AnyAccount: true})
		if err != nil {
			if json.Valid(data) && err.Code == relay.CodeInvalidSyntax && !isStricter(err.Detail) {
				t.Errorf("%q is JSON, got %v", data, err)
			}
			if err.Detail == "" || err.Source != "" && err.Source[0] != '/' {
				t.Errorf("incomplete error: %#v", err)
			}
			return
		}
		if !json.Valid(data) {
			t.Fatalf("accepted %q", data)
		}
		checkConsistent(t, d, n)
		compareUnknown(t, data, n.Data)
	})
}

// isStricter reports whether an error is about a rule that encoding/json does not have.
func isStricter(detail string) bool {
	for _, ours := range []string{"UTF-8", "surrogate", "deeper"} {
		if strings.Contains(detail, ours) {
			return true
		}
	}
	return false
}

// compareUnknown checks that each unknown member is preserved, except for white space.
func compareUnknown(t *testing.T, before, after []byte) {
	t.Helper()
	known := map[string]bool{
		"topic": true, "object": true, "context": true, "flags": true, "cursor": true, "id": true, "time": true,
		"object.id": true, "object.state": true, "object.error": true, "context.hub_id": true,
		"context.account_id":   true,
		"context.environments": true, "context.dns_zones": true, "context.clusters": true, "context.containers": true,
	}
	for _, part := range []string{"", "object", "context"} {
		was, is := membersOf(t, before, part), membersOf(t, after, part)
		prefix := ""
		if part != "" {
			prefix = part + "."
		}
		for name, value := range was {
			if known[prefix+name] {
				continue
			}
			var compact bytes.Buffer
			if err := json.Compact(&compact, value); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(is[name], compact.Bytes()) {
				t.Errorf("%s%s: want %q, got %q", prefix, name, value, is[name])
			}
		}
		for name := range is {
			if _, ok := was[name]; !ok && !known[prefix+name] {
				t.Errorf("%s%s: unexpected member", prefix, name)
			}
		}
	}
}

func membersOf(t *testing.T, data []byte, part string) map[string]json.RawMessage {
	t.Helper()
	var top map[string]json.RawMessage
	if err := json.Unmarshal(data, &top); err != nil {
		t.Fatal(err)
	}
	if part == "" {
		return top
	}
	var inner map[string]json.RawMessage
	if len(top[part]) > 0 {
		if err := json.Unmarshal(top[part], &inner); err != nil {
			t.Fatal(err)
		}
	}
	return inner
}

// FuzzDecodeBody compares a batch with its notifications decoded separately.
func FuzzDecodeBody(f *testing.F) {
	for _, s := range seeds() {
		f.Add(true, []byte(s))
		f.Add(true, []byte("["+s+" , "+s+"]"))
		f.Add(false, []byte(s+"\n\n"+s+"\r\n"))
	}
	f.Add(true, []byte("[]"))
	d := newDecoder(f)
	f.Fuzz(func(t *testing.T, asJSON bool, body []byte) {
		contentType := "application/x-ndjson"
		if asJSON {
			contentType = "application/json"
		}
		ns, refused := d.DecodeBody(contentType, body, Defaults{AnyAccount: true})
		if refused != nil {
			if ns != nil {
				t.Error("a part of a batch was accepted")
			}
			return
		}
		var parts []json.RawMessage
		switch trimmed := bytes.TrimLeft(body, " \t\r\n"); {
		case !asJSON:
			for line := range bytes.Lines(body) {
				if line = bytes.Trim(line, " \t\r\n"); len(line) > 0 {
					parts = append(parts, line)
				}
			}
		case trimmed[0] == '[':
			if err := json.Unmarshal(body, &parts); err != nil {
				t.Fatal(err)
			}
		default:
			parts = []json.RawMessage{body}
		}
		if len(ns) == 0 || len(ns) != len(parts) {
			t.Fatalf("got %d events, want %d", len(ns), len(parts))
		}
		for i, n := range ns {
			checkConsistent(t, d, n)
			compareUnknown(t, parts[i], n.Data)
		}
	})
}
