package sdk

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

type limits struct {
	Most int `json:"most"`
}

type settings struct {
	Report string            `json:"report"`
	Names  []string          `json:"names"`
	Limits limits            `json:"limits"`
	Labels map[string]string `json:"labels"`
}

func (s *settings) Validate() error {
	if s.Report == "" {
		return errors.New("report is missing: name a file")
	}
	return nil
}

func TestOptions_Decode(t *testing.T) {
	for text, want := range map[string]string{
		`{"report":"x","names":["a"],"limits":{"most":3},"labels":{"a":"b"}}`: "",
		`{"report":"x"} `:                    "",
		`{"report":"x"} {}`:                  "more text after the JSON value",
		``:                                   "report is missing: name a file",
		`{}`:                                 "report is missing: name a file",
		`{"reprot":"x"}`:                     `reprot is an unknown key; did you mean report?`,
		`{"zzz":1}`:                          `zzz is an unknown key; the keys are labels, limits, most, names, report`,
		`{"report":7}`:                       "report must be a string, not a number",
		`{"report":"x","limits":[]}`:         "limits must be a map, not a list",
		`{"limits":{"most":"x"}}`:            "limits.most must be a number, not a string",
		`{"report":"x","names":["a",1]}`:     "names must be a string, not a number",
		`[`:                                  "the JSON is incomplete",
		`{"report":"x","limits":{"mots":1}}`: "limits.mots is an unknown key; did you mean most?",
	} {
		var into settings
		err := newOptions([]Option{Config(&into)}).decode([]byte(text))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	none := newOptions(nil)
	if err := none.decode([]byte(`{"a":1}`)); err == nil || !strings.Contains(err.Error(), "takes no configuration") {
		t.Errorf("without a configuration: %v", err)
	}
	if err := none.decode([]byte(`{}`)); err != nil {
		t.Error(err)
	}
}

type still struct{ relay.Driver }

func TestServe_RejectsInvalidOptions(t *testing.T) {
	handler := func(context.Context, relay.Notification) error { return nil }
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no handler":   {ServeSink(nil), "needs a handler"},
		"no handler 2": {ServeDeliveries(nil), "needs a handler"},
		"concurrency":  {ServeSink(handler, Concurrency(0)), "sdk.Concurrency(0) is not from 1 to 65535"},
		"config": {
			ServeSink(handler, Config(limits{})),
			"sdk.Config takes a pointer to a struct, not a sdk.limits",
		},
		"by hand":      {ServeSink(handler), "this program is a plugin of hubrelay"},
		"no driver":    {ServeDriver(nil), "needs a driver"},
		"concurrency2": {ServeDriver(still{}, Concurrency(1)), "sdk.Concurrency is for sinks"},
		"by hand 2":    {ServeDriver(still{}), "this program is a plugin of hubrelay"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}
