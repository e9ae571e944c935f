package ingest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func TestDecodeRelayed(t *testing.T) {
	t.Parallel()
	catalog, err := relay.NewCatalog(nil)
	if err != nil {
		t.Fatal(err)
	}
	d := NewDecoder(catalog)
	with := func(more string) string { return `{"topic":"job.created","context":{"hub_id":"h"}` + more + `}` }
	many := `"r"` + strings.Repeat(`,"r"`, maxHops-1)
	for _, c := range []struct {
		name, data string
		hop        RelayHop
		via        string // the end of the data
		returned   bool
		problem    string
	}{
		{"from no relay", with(""), RelayHop{Self: "me"}, `"flags":null}`, false, ""},
		{"from a relay", with(`,"x":1`), RelayHop{"up", "me"}, `"flags":null,"x":1,"hubrelay_via":["up"]}`, false, ""},
		{
			"the second hop", with(`,"hubrelay_via":[ "a" , "b"],"x":1`),
			RelayHop{"up", "me"},
			`"x":1,"hubrelay_via":["a","b","up"]}`, false, "",
		},
		{
			"through what is no relay", with(`,"hubrelay_via":["a"]`),
			RelayHop{"", "me"},
			`"hubrelay_via":["a"]}`,
			false, "",
		},
		{"an empty list", with(`,"hubrelay_via":[]`), RelayHop{"up", "me"}, `"hubrelay_via":["up"]}`, false, ""},
		{"null", with(`,"hubrelay_via":null`), RelayHop{"up", "me"}, `"hubrelay_via":["up"]}`, false, ""},
		{"back at home", with(`,"hubrelay_via":["a","me"]`), RelayHop{"up", "me"}, "", true, ""},
		{"back at home, escaped", with(`,"hubrelay_via":["\u006de"]`), RelayHop{"up", "me"}, "", true, ""},
		{"too far", with(`,"hubrelay_via":[` + many + `]`), RelayHop{"up", "me"}, "", false, "loop"},
		{"no list", with(`,"hubrelay_via":"a"`), RelayHop{"up", "me"}, "", false, "array"},
		{"no names", with(`,"hubrelay_via":[1]`), RelayHop{"up", "me"}, "", false, "string"},
		{"half", `{"topic":"job.created","hubrelay_via":["me"`, RelayHop{"up", "you"}, "", false, "expected"},
	} {
		n, returned, rejected := d.DecodeRelayed([]byte(c.data), Defaults{AnyAccount: true}, c.hop)
		switch {
		case returned != c.returned:
			t.Errorf("%s: returned %t", c.name, returned)
		case c.problem != "":
			if rejected == nil || !strings.Contains(rejected.Error(), c.problem) {
				t.Errorf("%s: %v", c.name, rejected)
			}
		case rejected != nil:
			t.Errorf("%s: %v", c.name, rejected)
		case !strings.HasSuffix(string(n.Data), c.via) || !returned && !json.Valid(n.Data):
			t.Errorf("%s: got %s", c.name, n.Data)
		}
	}
	// Without a hop the member is an unknown one.
	n, rejected := d.Decode([]byte(with(`,"hubrelay_via":"mine"`)), Defaults{AnyAccount: true})
	if rejected != nil || !strings.HasSuffix(string(n.Data), `"hubrelay_via":"mine"}`) {
		t.Errorf("%s, %v", n.Data, rejected)
	}
	large := with(`,"x":"` + strings.Repeat("x", MaxNotification-60) + `"`)
	if _, _, rejected := d.DecodeRelayed([]byte(large), Defaults{AnyAccount: true}, RelayHop{}); rejected != nil {
		t.Errorf("maximum size with a cursor: got %v", rejected)
	}
	if _, _, rejected := d.DecodeRelayed([]byte(with(`,"x":"`+strings.Repeat("x", MaxNotification+relayOverhead)+`"`)),
		Defaults{AnyAccount: true}, RelayHop{}); rejected == nil {
		t.Error("an event above the maximum size was accepted")
	}
}
