package relay

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
)

// decodeMembers decodes the members of a JSON object whose names are exactly the keys of into. It is slow but obviously
// correct, and serves as the reference for Envelope.
func decodeMembers(data []byte, into map[string]any) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return err
	}
	for name, target := range into {
		if value, ok := members[name]; ok {
			if err := json.Unmarshal(value, target); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func decodeSlowly(data []byte) (e Envelope, err error) {
	var object, context json.RawMessage
	err = decodeMembers(data, map[string]any{"topic": &e.Topic, "object": &object, "context": &context})
	if err == nil {
		err = decodeMembers(object, map[string]any{
			"id": &e.Object.ID, "state": &e.Object.State, "error": &e.Object.Error,
		})
	}
	if err == nil {
		c := &e.Context
		err = decodeMembers(context, map[string]any{
			"hub_id": &c.HubID, "account_id": &c.AccountID, "environments": &c.Environments,
			"dns_zones": &c.DNSZones, "clusters": &c.Clusters, "containers": &c.Containers,
		})
	}
	return e, err
}

const sample = `{"topic":"container.created","object":{"id":"0123456789abcdef01234567","state":"","error":""},` +
	`"context":{"hub_id":"h","account_id":"a","environments":["0123456789abcdef01234567"],"dns_zones":[],` +
	`"clusters":["production"],"containers":["123456789abcdef012345678","23456789abcdef0123456789"]},"flags":null}`

func FuzzEnvelope(f *testing.F) {
	for _, text := range []string{
		sample,
		" {\n\t\"topic\" : \"a\\\"b\\u00e9\" , \"object\":{ } , \"context\" : null , \"more\" : [ {\"x\" : [ 1 , " +
			"\"]}\" ] } , -1.5e3 , true ] } \n",
		`{"object":{"id":null,"ID":"other","state":"x","state":"y"},"context":{"HUB_ID":"other",` +
			`"containers":null,"clusters":[null,"a,b","\\"]}}`,
		`{"object":{},"context":{"containers":["a",1]}}`, `{"object":{},"context":{"containers":"a"}}`,
		`{"object":[],"context":{}}`,
		`{"\u0074opic":"escaped","object":{"i\\d":7},"context":{"a":{"b":"}"},"c":3}}`, `{"topic":7}`,
		`{"topic":7,"topic":"x","object":{"id":"a","id":null},"context":{"containers":["a"],"containers":null,` +
			`"hub_id":[],"hub_id":"h"}}`, `[]`, `null`, `7`, `"x"`, ``, `{`, `{}`,
		"{\"topic\":\"\xff\",\"object\":{},\"context\":{\"containers\":[\"\xff\"]}}", `{"object":{},` +
			`"context":{"containers":{}}}`, `{"object":{},"context":{"containers":["a"],"containers":["b"]}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		want, wantErr := decodeSlowly(data)
		got, err := Notification{Data: data}.Envelope()
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: %v, want %v", data, err, wantErr)
		}
		if err == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q:\n got %#v\nwant %#v", data, got, want)
		}
	})
}

func BenchmarkEnvelope(b *testing.B) {
	n := Notification{Data: json.RawMessage(sample)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := n.Envelope(); err != nil {
			b.Fatal(err)
		}
	}
}
