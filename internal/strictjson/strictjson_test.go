package strictjson_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/strictjson"
	"github.com/hubrelay/hubrelay/relay"
)

type page struct {
	Limit int `json:"limit"`
}

type settings struct {
	Report string            `json:"report"`
	Names  []string          `json:"names"`
	Limits *page             `json:"limits"`
	Labels map[string]string `json:"labels"`
	Next   *settings         `json:"next"`
	Rules  []struct {
		Deep bool `json:"deep,omitempty"`
	} `json:"rules"`
	Plain   string
	Out     string `json:"-"`
	hidden  int
	Expires time.Time `json:"expires"`
	page
}

func TestDecode(t *testing.T) {
	_ = settings{hidden: 1}.hidden
	for text, want := range map[string]string{
		`{"report":"x","names":["a"],"limits":{"limit":3},"labels":{"a":"b"},"limit":4} `: "",
		`{"report":"x"} {}`:              "there is more text after the JSON value",
		`{"report":"x"} x`:               "there is more text after the JSON value",
		``:                               "the JSON is incomplete",
		`[`:                              "the JSON is incomplete",
		`{"report":}`:                    "invalid JSON at byte 11: invalid character '}' looking for beginning of value",
		`[1]`:                            "the JSON must be a map, not a list",
		`{"reprot":"x"}`:                 "reprot is an unknown key; did you mean report?",
		`{"Out":"x"}`:                    "Out is an unknown key; the keys are Plain, deep, expires, labels, limit, limits, names, next, report, rules",
		`{"report":7}`:                   "report must be a string, not a number",
		`{"report":true}`:                "report must be a string, not a boolean",
		`{"limits":[]}`:                  "limits must be a map, not a list",
		`{"limits":{"limit":"x"}}`:       "limits.limit must be a number, not a string",
		`{"names":["a",1]}`:              "names must be a string, not a number",
		`{"expires":"5x"}`:               `"5x" is not a time such as 2027-01-31T12:00:00Z`,
		`{"limits":{"limti":1}}`:         "limits.limti is an unknown key; did you mean limit?",
		`{"rules":[{},{"depe":true}]}`:   "rules.1.depe is an unknown key; did you mean deep?",
		`{"next":{"next":{"zzzzzz":1}}}`: "next.next.zzzzzz is an unknown key; the keys are Plain, deep, expires, labels, limit, limits, names, next, report, rules",
	} {
		var got string
		if err := strictjson.Decode([]byte(text), &settings{}); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestDecode_ErrorTypes(t *testing.T) {
	var field *relay.FieldError
	if err := strictjson.Decode([]byte(`{"limits":{"limti":1}}`), &settings{}); !errors.As(err, &field) || field.Field != "limits.limti" {
		t.Errorf("unknown key: %#v", err)
	}
	var syntax *strictjson.SyntaxError
	if err := strictjson.Decode([]byte(`{"a"`), &settings{}); !errors.As(err, &syntax) {
		t.Errorf("incomplete JSON: %#v", err)
	}
	err := strictjson.Decode([]byte(`{"a":1}`), &struct{}{})
	if err == nil || err.Error() != "a is an unknown key; no keys are allowed" {
		t.Errorf("without keys: %v", err)
	}
}
