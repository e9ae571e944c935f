package ingest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests mostly wait
	goleak.VerifyTestMain(m)
}

// normal returns a normal form with the given parts.
func normal(object, context, rest string) string {
	return `{"topic":"job.created","object":{` + object + `},"context":{` + context + `},"flags":null` + rest + `}`
}

const (
	emptyLists  = `"environments":[],"dns_zones":[],"clusters":[],"containers":[]`
	plainObject = `"id":"o","state":"","error":""`
	plainHub    = `"hub_id":"h","account_id":"",` + emptyLists
)

func TestDecode_Normalizes(t *testing.T) {
	t.Parallel()
	d := newDecoder(t)
	for name, tc := range map[string]struct {
		in, want string
		def      Defaults
	}{
		"least": {
			in: `{"topic":"job.created","object":{"id":"o"},"context":{}}`, def: Defaults{Hub: "h", Account: "a"},
			want: normal(plainObject, `"hub_id":"h","account_id":"a",`+emptyLists, ""),
		},
		"a trace of the request": {
			in: `{"topic":"job.created","object":{"id":"o"},"context":{},"x":1}`, def: Defaults{
				Hub: "h", Account: "a", Trace: relay.Trace{Parent: "00-a", State: "a=\"1\""},
			},
			want: normal(plainObject, `"hub_id":"h","account_id":"a",`+emptyLists,
				`,"x":1,"traceparent":"00-a","tracestate":"a=\"1\""`),
		},
		"a trace of its own": {
			in: `{"topic":"job.created","object":{"id":"o"},"context":{},"traceparent":"00-b"}`, def: Defaults{
				Hub: "h", Account: "a", Trace: relay.Trace{Parent: "00-a"},
			},
			want: normal(plainObject, `"hub_id":"h","account_id":"a",`+emptyLists, `,"traceparent":"00-b"`),
		},
		"all known, in another order": {
			in: "\t{\"flags\":{\"x\":[1]},\"context\":{\"containers\":[\"c\" , " +
				"\"d\"],\"clusters\":[\"production\"],\"dns_zones\":null,\n" +
				"\"environments\":[ " +
				"],\"account_id\":\"a\",\"hub_id\":\"h\"},\"object\":{\"error\":\"e\",\"state\":\"s\"," +
				"\"id\":\"o\"},\"topic\":\"job.created\"}\r\n",
			def: Defaults{AnyAccount: true},
			want: normal(`"id":"o","state":"s","error":"e"`,
				`"hub_id":"h","account_id":"a","environments":[],"dns_zones":[],"clusters":["production"],`+
					`"containers":["c","d"]`, ""),
		},
		"null for missing": {
			in: `{"topic":"job.created","object":{"id":"o","state":null,"error":null},"context":{"hub_id":null,` +
				`"account_id":null,` +
				`"environments":null,"dns_zones":null,"clusters":null,"containers":null}}`,
			def:  Defaults{Hub: "h"},
			want: normal(plainObject, plainHub, ""),
		},
		"unknown members byte for byte": {
			in: `{"v":1.50,"topic":"job.created","object":{"n":12345678901234567890123,"id":"o","ID":"x"},` +
				`"context":{"hub_id":"h","deep":{"a":[[[{"b":-0.0e-10}]]],"u":"\u00e9\ud83d\ude00\/é",` +
				`"large":[1.7e308,1e-400,123456789012345678901234567890]},"HUB_ID":"evil"}}`,
			want: normal(plainObject+`,"n":12345678901234567890123,"ID":"x"`,
				plainHub+`,"deep":{"a":[[[{"b":-0.0e-10}]]],"u":"\u00e9\ud83d\ude00\/é","large":[1.7e308,1e-400,123456789012345678901234567890]},`+
					`"HUB_ID":"evil"`, `,"v":1.50`),
		},
		"white space in unknown members": {
			in: "{\"topic\":\"job.created\",\"object\":{\"id\":\"o\"},\"context\":{\"hub_id\":\"h\",\"x\" : { " +
				"\"a b\" :\n [ 1 ,\r\n\"q \\\" , \\\\\" ] }}}",
			want: normal(plainObject, plainHub+`,"x":{"a b":[1,"q \" , \\"]}`, ""),
		},
		"our own names at the top": {
			in: `{"topic":"job.created","object":{"id":"o"},"context":{"hub_id":"h","cursor":1},"cursor":"1-0",` +
				`"id":"forged","time":{"a":1},` +
				`"flags":null}`,
			want: normal(plainObject, plainHub+`,"cursor":1`, ""),
		},
		"escapes in what is known": {
			in: `{"\u0074opic":"job\u002ecreated","object":{"id":"\u006f"},"context":{"hub_id":"\ud83d\ude00",` +
				`"clusters":["a\/b"]}}`,
			want: normal(
				`"id":"\u006f","state":"","error":""`,
				`"hub_id":"\ud83d\ude00","account_id":"","environments":[],"dns_zones":[],"clusters":["a\/b"],`+
					`"containers":[]`,
				"",
			),
		},
		"empty account is filled in": {
			in: `{"topic":"job.created","object":{"id":"o"},"context":{"hub_id":"h","account_id":""}}`, def: Defaults{
				Hub: "h", Account: "a",
			},
			want: normal(plainObject, `"hub_id":"h","account_id":"a",`+emptyLists, ""),
		},
		"the account of a platform's key is not filled in": {
			in: `{"topic":"job.created","object":{"id":"o"},"context":{}}`, def: Defaults{Hub: "h", Account: "*"},
			want: normal(plainObject, plainHub, ""),
		},
		"a missing context is filled in like an empty one": {
			in: `{"topic":"job.created","object":{"id":"o"}}`, def: Defaults{Hub: "h", Account: "a"},
			want: normal(plainObject, `"hub_id":"h","account_id":"a",`+emptyLists, ""),
		},
		"a default that needs escapes": {
			in: `{"topic":"job.created","object":{"id":"o"},"context":{}}`, def: Defaults{Hub: `h"\`},
			want: normal(plainObject, `"hub_id":"h\"\\","account_id":"",`+emptyLists, ""),
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := d.Decode([]byte(tc.in), tc.def)
			if err != nil {
				t.Fatal(err)
			}
			if string(n.Data) != tc.want {
				t.Errorf("got  %s\nwant %s", n.Data, tc.want)
			}
			checkConsistent(t, d, n)
		})
	}
}

// checkConsistent checks invariants of every accepted notification.
func checkConsistent(t *testing.T, d *Decoder, n relay.Notification) {
	t.Helper()
	if len(n.ID) != 24 || strings.Trim(n.ID, "0123456789abcdef") != "" {
		t.Errorf("got ID %q", n.ID)
	}
	if !json.Valid(n.Data) || strings.ContainsAny(string(n.Data), "\n\r") {
		t.Errorf("not one line of JSON: %q", n.Data)
	}
	e, err := n.Envelope()
	if err != nil {
		t.Fatal(err)
	}
	if e.Topic != n.Topic || e.Context.HubID != n.Hub || e.Context.AccountID != n.Account || e.Object.ID == "" {
		t.Errorf("%+v differs from %+v", e, n)
	}
	if e.Context.Environments == nil || e.Context.DNSZones == nil || e.Context.Clusters == nil ||
		e.Context.Containers == nil {
		t.Errorf("a list is missing: %s", n.Data)
	}
	again, rejected := d.Decode(n.Data, Defaults{AnyAccount: true})
	if rejected != nil && rejected.Code != relay.CodeTooLarge {
		t.Fatalf("the normal form is rejected: %v", rejected)
	}
	if rejected == nil && string(again.Data) != string(n.Data) {
		t.Errorf("not idempotent:\n%s\n%s", n.Data, again.Data)
	}
}

func TestDecode_SetsObjectID(t *testing.T) {
	t.Parallel()
	d := newDecoder(t)
	for _, object := range []string{
		``, `"object":null,`, `"object":{},`, `"object":{"id":null},`, `"object":{"id":""},`,
	} {
		n, err := d.Decode([]byte(`{`+object+`"topic":"job.created","context":{"hub_id":"h"}}`), Defaults{})
		if err != nil {
			t.Fatal(err)
		}
		if want := normal(`"id":"`+n.ID+`","state":"","error":""`, plainHub, ""); string(n.Data) != want {
			t.Errorf("%q: got %s, want %s", object, n.Data, want)
		}
	}
}

func TestDecode_CopiesInput(t *testing.T) {
	t.Parallel()
	d := newDecoder(t)
	data := []byte(typical)
	n, err := d.Decode(data, Defaults{AnyAccount: true})
	if err != nil {
		t.Fatal(err)
	}
	before := fmt.Sprint(n)
	for i := range data {
		data[i] = 'x'
	}
	if _, err := d.Decode([]byte(strings.ReplaceAll(typical, "5", "6")), Defaults{AnyAccount: true}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(n) != before {
		t.Error("the event changed with its input")
	}
}

func TestDecode_Rejects(t *testing.T) {
	t.Parallel()
	d := newDecoder(t)
	ctx := func(members string) string { return `{"topic":"job.created","context":{` + members + `}}` }
	long := strings.Repeat("x", 257)
	for _, tc := range []struct{ in, code, source, detail string }{
		{``, "400.invalid-syntax", "", "line 1, column 1: not JSON: the text ends"},
		{`nul`, "400.invalid-syntax", "", "not JSON: expected a value, found 'n'"},
		{`{`, "400.invalid-syntax", "", "expected a member's name"},
		{`{"topic"`, "400.invalid-syntax", "", "expected ':'"},
		{`{"topic":`, "400.invalid-syntax", "/topic", "the text ends"},
		{`{"topic":tru}`, "400.invalid-syntax", "/topic", "expected a value, found 't'"},
		{
			"{\"topic\":\"job.created\",\n \"context\":{\"é\":01}}", "400.invalid-syntax", "/context",
			"line 2, column 18: expected ',' or '}' after a member, found '1'",
		},
		{`{"topic":"job.created",}`, "400.invalid-syntax", "", "found '}'"},
		{`{'topic':1}`, "400.invalid-syntax", "", "double quotes"},
		{ctx(`"hub_id":"h","x":[1,]`), "400.invalid-syntax", "/context/x/1", "found ']'"},
		{ctx(`"hub_id":"h","x":1.`), "400.invalid-syntax", "/context/x", "digit"},
		{ctx(`"hub_id":"h","x":NaN`), "400.invalid-syntax", "/context/x", "found 'N'"},
		{ctx(`"hub_id":"h","x":"` + "\n" + `"`), "400.invalid-syntax", "/context/x", "control character"},
		{ctx(`"hub_id":"h","x":"\x"`), "400.invalid-syntax", "/context/x", "escape"},
		{ctx(`"hub_id":"h","x":"\u12g4"`), "400.invalid-syntax", "/context/x", "escape"},
		{ctx(`"hub_id":"h","x":"` + "\xff" + `"`), "400.invalid-syntax", "/context/x", "UTF-8"},
		{ctx(`"hub_id":"h","x":"` + "\xed\xa0\x80" + `"`), "400.invalid-syntax", "/context/x", "UTF-8"},
		{ctx(`"hub_id":"h","` + "\xff" + `":1`), "400.invalid-syntax", "/context", "UTF-8"},
		{ctx(`"hub_id":"h","\udc00":1`), "422.invalid-argument", "/context", "surrogate"},
		{ctx(`"hub_id":"h","x":"open`), "400.invalid-syntax", "/context/x", "not closed"},
		{"\xef\xbb\xbf" + ctx(`"hub_id":"h"`), "400.invalid-syntax", "", "byte order mark"},
		{ctx(`"hub_id":"h"`) + `{}`, "400.invalid-syntax", "", "expected the end"},
		{ctx(`"hub_id":"h"`) + "\x00", "400.invalid-syntax", "", "expected the end"},
		{
			ctx(`"x":` + strings.Repeat("[", 62) + strings.Repeat("]", 62) + `,"y":` + strings.Repeat("[", 63)),
			"400.invalid-syntax", "/context/y" + strings.Repeat("/0", 62), "deeper than 64",
		},
		{strings.Repeat("[", 100_000), "400.invalid-syntax", strings.Repeat("/0", 64), "deeper than 64"},

		{`{"topic":"job.created","topic":"job.created"}`, "422.invalid-argument", "/topic", "twice"},
		{`{"topic":"job.created","\u0074opic":1}`, "422.invalid-argument", "/topic", "twice"},
		{ctx(`"hub_id":"h","hub_id":"h"`), "422.invalid-argument", "/context/hub_id", "twice"},
		{ctx(`"hub_id":"h","x":[{"a/b":1,"~":2,"a/b":3}]`), "422.invalid-argument", "/context/x/0/a~1b", "twice"},
		{ctx(`"hub_id":"h","":1,"":2`), "422.invalid-argument", "/context/", "twice"},

		{`[]`, "422.invalid-argument", "", "must be an object, not an array"},
		{`"x"`, "422.invalid-argument", "", "not a string"},
		{`-1`, "422.invalid-argument", "", "not a number"},
		{`null`, "422.invalid-argument", "", "not null"},
		{`{}`, "422.missing-argument", "/topic", "no topic"},
		{`{"topic":null,"context":{"hub_id":"h"}}`, "422.missing-argument", "/topic", "no topic"},
		{
			`{"topic":3,"context":{"hub_id":"h"}}`, "422.invalid-argument", "/topic",
			"topic must be a string, not a number",
		},
		{`{"topic":"","context":{"hub_id":"h"}}`, "422.invalid-argument", "/topic", `there is no topic ""`},
		{
			`{"topic":"job.craeted","context":{"hub_id":"h"}}`, "422.invalid-argument", "/topic",
			"the nearest topic is job.created",
		},
		{
			`{"topic":"hubrelay.sink.disabled","context":{"hub_id":"h"}}`, "422.invalid-argument", "/topic",
			"there is no topic",
		},
		{ctx(`"hub_id":"h","x":{"y":[0,{"n":1e309}]}`), "422.invalid-argument", "/context/x/y/1/n", "64-bit float"},
		{ctx(`"hub_id":"h","n":-1` + strings.Repeat("0", 400)), "422.invalid-argument", "/context/n", "64-bit float"},
		{ctx(`"hub_id":"h","x":["a\u0000"]`), "422.invalid-argument", "/context/x/0", "NUL"},
		{ctx(`"hub_id":"h","a\u0000":1`), "422.invalid-argument", "/context", "NUL"},
		{ctx(`"hub_id":"h","x":"\ud83dx"`), "422.invalid-argument", "/context/x", "surrogate"},
		{ctx(`"hub_id":"h","x":"\ud83d\ud83d"`), "422.invalid-argument", "/context/x", "surrogate"},
		{ctx(`"hub_id":"h","x":"\ude00\ud83d"`), "422.invalid-argument", "/context/x", "surrogate"},
		{`{"topic":"\ud800","context":{"hub_id":"h"}}`, "422.invalid-argument", "/topic", "surrogate"},
		{`{"topic":"job.created"}`, "422.missing-argument", "/context", "no context"},
		{`{"topic":"job.created","context":null}`, "422.missing-argument", "/context", "no context"},
		{`{"topic":"job.created","context":[]}`, "422.invalid-argument", "/context", "must be an object, not an array"},
		{
			`{"topic":"job.created","object":"x","context":{"hub_id":"h"}}`, "422.invalid-argument", "/object",
			"not a string",
		},
		{
			`{"topic":"job.created","object":{"id":3},"context":{"hub_id":"h"}}`, "422.invalid-argument", "/object/id",
			"object/id must be a string, not a number",
		},
		{
			`{"topic":"job.created","object":{"state":true},"context":{"hub_id":"h"}}`, "422.invalid-argument",
			"/object/state", "not a boolean",
		},
		{
			`{"topic":"job.created","object":{"error":{}},"context":{"hub_id":"h"}}`, "422.invalid-argument",
			"/object/error", "not an object",
		},
		{
			`{"topic":"job.created","object":{"id":"` + long + `"},"context":{"hub_id":"h"}}`, "422.invalid-argument",
			"/object/id", "longer than 256",
		},
		{ctx(``), "422.missing-argument", "/context/hub_id", "no hub_id"},
		{ctx(`"hub_id":""`), "422.invalid-argument", "/context/hub_id", "empty"},
		{ctx(`"hub_id":7`), "422.invalid-argument", "/context/hub_id", "not a number"},
		{ctx(`"hub_id":"a\u0000b"`), "422.invalid-argument", "/context/hub_id", "NUL"},
		{ctx(`"hub_id":"` + "a\u0085b" + `"`), "422.invalid-argument", "/context/hub_id", "control character"},
		{ctx(`"hub_id":"` + long + `"`), "422.invalid-argument", "/context/hub_id", "longer than 256"},
		{ctx(`"hub_id":"h","account_id":[]`), "422.invalid-argument", "/context/account_id", "not an array"},
		{ctx(`"hub_id":"h","account_id":"someone"`), "422.invalid-argument", "/context/account_id", "not the account"},
		{
			ctx(`"hub_id":"h","containers":"c"`), "422.invalid-argument", "/context/containers",
			"an array of strings, not a string",
		},
		{
			ctx(`"hub_id":"h","containers":["a","b",3,4]`), "422.invalid-argument", "/context/containers/2",
			"context/containers/2 must be a string, not a number",
		},
		{ctx(`"hub_id":"h","clusters":[""]`), "422.invalid-argument", "/context/clusters/0", "empty"},
		{ctx(`"hub_id":"h","environments":["\n"]`), "422.invalid-argument", "/context/environments/0", "control"},
		{ctx(`"hub_id":"h","dns_zones":["\udfff"]`), "422.invalid-argument", "/context/dns_zones/0", "surrogate"},
		{ctx(`"hub_id":"h","x":"` + strings.Repeat("x", MaxNotification) + `"`), "413.too-large", "", "262144"},
		// A syntax error takes precedence over earlier errors.
		{`{"topic":"nonsense","context":{"hub_id":"h"},"x":}`, "400.invalid-syntax", "/x", "column 50"},
	} {
		_, err := d.Decode([]byte(tc.in), Defaults{})
		if err == nil {
			t.Errorf("%.80s: accepted", tc.in)
			continue
		}
		if string(err.Code) != tc.code || err.Source != tc.source || !strings.Contains(err.Detail, tc.detail) {
			t.Errorf("%.80s:\ngot  %v\nwant %s at %s: …%s…", tc.in, err, tc.code, tc.source, tc.detail)
		}
	}
}

func TestDecode_Defaults(t *testing.T) {
	t.Parallel()
	d := newDecoder(t)
	for name, tc := range map[string]struct {
		context string
		def     Defaults
		source  string
	}{
		"same hub":          {`"hub_id":"h"`, Defaults{Hub: "h"}, ""},
		"another hub":       {`"hub_id":"g"`, Defaults{Hub: "h"}, "/context/hub_id"},
		"no hub":            {``, Defaults{Hub: "h"}, ""},
		"same account":      {`"hub_id":"h","account_id":"a"`, Defaults{Account: "a"}, ""},
		"another account":   {`"hub_id":"h","account_id":"b"`, Defaults{Account: "a"}, "/context/account_id"},
		"key of no account": {`"hub_id":"h","account_id":"b"`, Defaults{}, "/context/account_id"},
		"any account":       {`"hub_id":"h","account_id":"b"`, Defaults{AnyAccount: true}, ""},
		"the account *":     {`"hub_id":"h","account_id":"b"`, Defaults{Account: "*"}, ""},
	} {
		_, err := d.Decode([]byte(`{"topic":"job.created","context":{`+tc.context+`}}`), tc.def)
		if (err != nil) != (tc.source != "") || err != nil && err.Source != tc.source {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestDecode_AcceptsMaximumSize(t *testing.T) {
	t.Parallel()
	d := newDecoder(t)
	head, tail := `{"topic":"job.created","context":{"hub_id":"h","x":"`, `"}}`
	text := head + strings.Repeat("x", MaxNotification-len(head)-len(tail)) + tail
	if _, err := d.Decode([]byte(" "+text+"\n"), Defaults{}); err != nil {
		t.Error(err)
	}
}

func TestDecode_DuplicateAmongManyMembers(t *testing.T) {
	t.Parallel()
	d := newDecoder(t)
	for _, n := range []int{2, 15, 16, 17, 18, 100} {
		for _, double := range []int{0, 1, n - 2, n - 1} {
			var b strings.Builder
			b.WriteString(`{"topic":"job.created","context":{"hub_id":"h","x":{`)
			for i := range n {
				fmt.Fprintf(&b, `"m%d":0,`, i)
			}
			good := strings.TrimSuffix(b.String(), ",") + `}}}`
			if _, err := d.Decode([]byte(good), Defaults{}); err != nil {
				t.Fatal(err)
			}
			_, err := d.Decode(fmt.Appendf(nil, `%s"m%d":0}}}`, b.String(), double), Defaults{})
			if want := fmt.Sprintf("/context/x/m%d", double); err == nil || err.Source != want {
				t.Errorf("%d members: got %v, want it at %s", n, err, want)
			}
		}
	}
}

func TestIDSource_IncreasesAndHidesCounts(t *testing.T) {
	t.Parallel()
	s := newIDSource()
	clock := time.Unix(0x5f000000, 0)
	s.now = func() time.Time { return clock }
	last := s.next(1)
	if !strings.HasPrefix(last, "5f000000") {
		t.Errorf("got %s", last)
	}
	for i := range 1000 {
		if i == 500 {
			clock = clock.Add(-maxAhead / 2) // a clock set back must not repeat an ID
		}
		id := s.next(1)
		if id <= last || len(id) != 24 {
			t.Fatalf("got ID %s after %s", id, last)
		}
		last = id
	}
	// Those of two sources at the same time have the same beginning, and other random bits.
	clock = clock.Add(2 * time.Hour)
	other := newIDSource()
	other.now = s.now
	if a, b := s.next(1), other.next(1); a == b || a[:15] != b[:15] {
		t.Errorf("got IDs %s and %s at the same time", a, b)
	}
}

// After the clock was wrong for a moment, IDs follow it again. Small steps keep them increasing.
func TestIDSource_ClockIsSetBack(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	s := &idSource{now: func() time.Time { return now }}
	first := s.next(1)
	now = now.Add(-5 * time.Second)
	if second := s.next(1); second[:16] < first[:16] {
		t.Errorf("after a step of five seconds, %s follows %s", second, first)
	}
	now = now.Add(24 * time.Hour)
	s.next(1)
	now = now.Add(-24 * time.Hour)
	n := relay.Notification{ID: s.next(1)}
	if got := n.StoredAt(); !got.Equal(now) {
		t.Errorf("after a correction by a day, an ID has the time %s, want %s", got, now)
	}
}
