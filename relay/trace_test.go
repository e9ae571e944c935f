package relay

import (
	"strings"
	"testing"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestParseTrace(t *testing.T) {
	for name, c := range map[string]struct {
		parent, state string
		want          Trace
	}{
		"both":        {parent, " a=1,b=2", Trace{parent, "a=1,b=2"}},
		"no state":    {parent, "", Trace{Parent: parent}},
		"state alone": {"", "a=1", Trace{}},
		"upper case":  {strings.ToUpper(parent), "", Trace{}},
		"no trace":    {"00-00000000000000000000000000000000-b7ad6b7169203331-01", "", Trace{}},
		"no parent":   {"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "", Trace{}},
		"version ff":  {"ff" + parent[2:], "", Trace{}},
		"short":       {parent[:54], "", Trace{}},
		"more":        {parent + "-x", "", Trace{}},
		"future version": {
			"cc" + parent[2:] + "-what-the-future", "", Trace{Parent: "cc" + parent[2:] + "-what-the-future"},
		},
		"line break":     {"cc" + parent[2:] + "-a\r\nX: y", "", Trace{}},
		"break in state": {parent, "a=1\r\nX: y", Trace{Parent: parent}},
		"long state":     {parent, strings.Repeat("a", 513), Trace{Parent: parent}},
	} {
		if got := ParseTrace(c.parent, c.state); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestNotification_Trace(t *testing.T) {
	for data, want := range map[string]Trace{
		`{"topic":"a","traceparent":"` + parent + `","tracestate":"a=1"}`:   {parent, "a=1"},
		`{"topic":"a","object":{"traceparent":"` + parent + `"}}`:           {},
		`{"topic":"a","traceparent":7}`:                                     {},
		`{"topic":"a"}`:                                                     {},
		`{"topic":"a","traceparent":"` + parent + `","tracestate":"a\n=1"}`: {Parent: parent},
	} {
		if got := (Notification{Data: []byte(data)}).Trace(); got != want {
			t.Errorf("%s: %+v", data, got)
		}
	}
}
