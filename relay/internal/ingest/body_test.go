package ingest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func item(i int) string {
	return fmt.Sprintf(`{"topic":"job.created","object":{"id":"%d"},"context":{}}`, i)
}

func TestDecodeBody(t *testing.T) {
	t.Parallel()
	d := newDecoder(t)
	const asJSON, asLines = "application/json", "application/x-ndjson"
	for name, tc := range map[string]struct {
		contentType, body string
		want              int
	}{
		"one":                  {asJSON, item(0), 1},
		"one, spaced":          {asJSON, " \r\n" + item(0) + "\n\n", 1},
		"array of one":         {asJSON, "[" + item(0) + "]", 1},
		"array":                {asJSON, " [ " + item(0) + " ,\n" + item(1) + "," + item(2) + " ] ", 3},
		"charset":              {"application/json; charset=UTF-8", item(0), 1},
		"charset, quoted":      {`Application/JSON;charset="utf-8"`, item(0), 1},
		"lines":                {asLines, item(0) + "\n" + item(1) + "\n", 2},
		"lines, no last break": {asLines, item(0) + "\n" + item(1), 2},
		"lines, windows":       {asLines, item(0) + "\r\n" + item(1) + "\r\n", 2},
		"lines, blank ones":    {asLines + "; charset=utf-8", "\n\n \t\r\n" + item(0) + "\n\n" + item(1) + "\n \n", 2},
	} {
		ns, err := d.DecodeBody(tc.contentType, []byte(tc.body), Defaults{Hub: "h"})
		if err != nil || len(ns) != tc.want {
			t.Errorf("%s: %d events, %v", name, len(ns), err)
			continue
		}
		for i, n := range ns {
			if want := normal(fmt.Sprintf(`"id":"%d","state":"","error":""`, i), plainHub, ""); string(n.Data) != want {
				t.Errorf("%s: got %s, want %s", name, n.Data, want)
			}
			if i > 0 && n.ID <= ns[i-1].ID {
				t.Errorf("%s: the ids do not grow", name)
			}
		}
	}
}

func TestDecodeBodyRefuses(t *testing.T) {
	t.Parallel()
	d := newDecoder(t)
	const asJSON, asLines = "application/json", "application/x-ndjson"
	bad := `{"topic":"job.created","context":{"hub_id":"other"}}`
	large := `{"topic":"job.created","context":{"x":"` + strings.Repeat("x", MaxNotification) + `"}}`
	for _, tc := range []struct{ contentType, body, code, source, detail string }{
		{"", item(0), "415.invalid-content-type", "", "no Content-Type"},
		{"text/plain", item(0), "415.invalid-content-type", "", "text/plain"},
		{"application/x-www-form-urlencoded", item(0), "415.invalid-content-type", "", "send application/json"},
		{"application/json; charset=iso-8859-1", item(0), "415.invalid-content-type", "", "iso-8859-1"},
		{"application/json; charset", item(0), "415.invalid-content-type", "", ""},
		{asJSON, "", "400.invalid-syntax", "", "empty"},
		{asJSON, " \n", "400.invalid-syntax", "", "empty"},
		{asJSON, "[]", "422.invalid-argument", "", "the array is empty"},
		{asJSON, "[ ] x", "400.invalid-syntax", "", "expected the end"},
		{asJSON, "[" + item(0), "400.invalid-syntax", "", "expected ',' or ']'"},
		{asJSON, "[" + item(0) + ",]", "400.invalid-syntax", "/1", "expected a value"},
		{asJSON, "[" + item(0) + "]]", "400.invalid-syntax", "", "expected the end"},
		{asJSON, item(0) + item(1), "400.invalid-syntax", "", "application/x-ndjson"},
		{asJSON, "\xef\xbb\xbf" + item(0), "400.invalid-syntax", "", "byte order mark"},
		{
			asJSON, "[" + item(0) + "," + item(1) + "," + bad + "," + bad + "]", "422.invalid-argument",
			"/2/context/hub_id", "other",
		},
		{asJSON, "[" + item(0) + ",7]", "422.invalid-argument", "/1", "not a number"},
		{asJSON, "[[]]", "422.invalid-argument", "/0", "not an array"},
		{asJSON, "[" + item(0) + "," + large + "]", "413.too-large", "/1", "262144"},
		{asLines, "", "422.invalid-argument", "", "no event"},
		{asLines, "\n \r\n", "422.invalid-argument", "", "no event"},
		{asLines, item(0) + "\n\n" + bad, "422.invalid-argument", "/1/context/hub_id", "other"},
		{asLines, item(0) + "\n\n" + `{"topic":x}`, "400.invalid-syntax", "/1/topic", "line 3, column 10"},
		{asLines, item(0) + item(1), "400.invalid-syntax", "/0", "end of the line"},
		{asLines, "{\n}", "400.invalid-syntax", "/0", "line 1"},
		{asLines, "[" + item(0) + "]", "422.invalid-argument", "/0", "not an array"},
		{asLines, "\xef\xbb\xbf" + item(0), "400.invalid-syntax", "/0", "byte order mark"},
	} {
		ns, err := d.DecodeBody(tc.contentType, []byte(tc.body), Defaults{Hub: "h"})
		if err == nil || ns != nil {
			t.Errorf("%s %.80s: accepted", tc.contentType, tc.body)
			continue
		}
		if string(err.Code) != tc.code || err.Source != tc.source || !strings.Contains(err.Detail, tc.detail) {
			t.Errorf("%s %.80s:\ngot  %v\nwant %s at %s: …%s…", tc.contentType, tc.body, err, tc.code, tc.source,
				tc.detail)
		}
		if index, ok := err.Extra["index"]; ok != (tc.source != "") ||
			ok && !strings.HasPrefix(err.Source, fmt.Sprintf("/%d", index)) {
			t.Errorf("%.80s: extra is %v", tc.body, err.Extra)
		}
	}
}

func TestUnknownTopicNamesTheNearest(t *testing.T) {
	t.Parallel()
	d := newDecoder(t)
	_, err := d.DecodeBody("application/json", []byte(`[{"topic":"container.craeted","context":{}}]`),
		Defaults{Hub: "h"})
	if err == nil || err.Extra["nearest"] != "container.created" || err.Extra["index"] != 0 ||
		err.Code != relay.CodeInvalidArgument {
		t.Errorf("got %+v", err)
	}
}
