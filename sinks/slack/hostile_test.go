package slack

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

// What looks like one identifier is one, and a state does not read as the one before it.
func TestHiddenCharacters(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a\u200bb\u2060c\ufeffd":                "`abcd`",
		"a\u200eb\u200fc\u061cd":                "`abcd`",
		"txt\u202egpj.exe\u202c\u2066x\u2069":   "`txtgpj.exex`",
		"x\ufff9y\ufffaz\ufffb":                 "`xyz`",
		"👩\u200d👧":                              "`👩\u200d👧`",
		"\u200b\u200f\u2060":                    "",
		"\u05e9\u05d5\u05de":                    "\u2068`\u05e9\u05d5\u05de`\u2069",
		"\u2069`\u0645\u202e":                   "\u2068`ˋ\u0645`\u2069",
		strings.Repeat("\u05d0", 30):            "\u2068`" + strings.Repeat("\u05d0", 15) + ellipsis + "`\u2069",
		"a`<!channel>`" + "\xff" + "\x00\x1b[0": "`aˋ&lt;!channel…`",
	} {
		if got := formatCode(in, 20); got != want {
			t.Errorf("code(%q) = %q, want %q", in, got, want)
		}
	}
	n := note("n1", "container.state.changed", `{"id":"x","state":"\u05d1","error":"","previous_state":"\u05d0"}`,
		emptyContext)
	m := newRenderer().renderDelivery(one(n))
	checkMessage(t, m)
	if data, _ := json.Marshal(m); !strings.Contains(string(data), "\u2068`\u05d0`\u2069 → \u2068`\u05d1`\u2069") {
		t.Errorf("the states are not set apart: %s", data)
	}
}

// However large and deep a notification is, a digest of them is a message that Slack takes.
func TestHugeNotifications(t *testing.T) {
	t.Parallel()
	long := quoted(strings.Repeat("<!here> `\u202e\u0301 ", 2_000))
	list := "[" + strings.TrimSuffix(strings.Repeat(`"",`, 5_000), ",") + "]"
	deep := strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000)
	for name, n := range map[string]relay.Notification{
		"texts": note("n1", "container.error", `{"id":`+long+`,"state":`+long+`,"error":`+long+`,"old_state":`+long+`}`,
			`{"hub_id":`+long+`,"account_id":`+long+`,"containers":[`+long+`]}`),
		"empty identifiers": note("n1", "container.error", `{"id":"","state":"","error":""}`,
			`{"hub_id":"h","containers":`+list+`,"clusters":`+list+`}`),
		"depth": note("n1", "container.error", `{"id":"i","state":"","error":"","x":`+deep+`}`,
			emptyContext),
		"invalid UTF-8": {
			ID: "n\xff1", Topic: "container.\xfe", Hub: "h\xc0",
			Data: []byte(
				"{\"object\":{\"id\":\"\xff\",\"state\":\"\xed\xa0\x80\",\"error\":\"\xf0\x9f\"},\"context\":{}}",
			),
		},
		"topic": {
			ID: "n1", Topic: strings.Repeat("*_~`<!channel>\n", 20_000), Hub: "h",
			Data: []byte("{}"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkMessage(t, newRenderer().renderDelivery(one(n)))
			d := relay.Delivery{
				ID: strings.Repeat("d<&>", 10_000), Digest: &relay.Digest{
					Count: 900, Shared: map[string]string{"hub": n.Hub, "cluster": n.Topic},
				},
			}
			for range 6 {
				d.Notifications = append(d.Notifications, n)
			}
			checkMessage(t, newRenderer().renderDelivery(d))
		})
	}
}

// Output of a template that is too long is cut at a safe place.
func TestShortened(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in    string
		limit int
		want  string
	}{
		{"abc", 3, "abc"},
		{"abcd", 3, "ab…"},
		{"abcd", 1, ellipsis},
		{"ab&amp;cd", 6, "ab…"},
		{"ab&amp;cd", 8, "ab&amp;…"},
		{"a & b & c", 5, "a & …"},
		{"a < b is no link", 5, "a < …"},
		{"see <https://example.com|this> there", 20, "see …"},
		{"see <https://example.com|this> there", 32, "see <https://example.com|this> …"},
		{"```one\ntwo``` three", 12, "```one\n…\n```"},
		{"```one``` and three", 12, "```one``` a…"},
		{"ab```cd", 4, "ab…"},
		{"```abcdefgh```", 6, ellipsis},
		{"👩\u200d👩\u200d👧👩\u200d👩\u200d👧", 10, "👩\u200d👩\u200d👧…"},
	} {
		got := truncateMarkdown(c.in, c.limit, utf16Len)
		if got != c.want || utf16Len(got) > c.limit {
			t.Errorf("shortened(%q, %d) = %q, want %q", c.in, c.limit, got, c.want)
		}
	}
}

// However long each text of a template's blocks is, Slack takes all of them.
func TestBoundBlocks(t *testing.T) {
	t.Parallel()
	long := quoted(strings.Repeat("&amp;x ", 5_000))
	text := `{"type":"mrkdwn","text":` + long + `}`
	list := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat(text+",", n), ",") + "]" }
	blocks, err := blocksOf([]byte(`[{"type":"header","text":{"type":"plain_text","text":` + long +
		`}},{"type":"section","text":` + text + `},` +
		`{"type":"section","fields":` + list(12) + `},{"type":"context","elements":` + list(12) +
		`},{"type":"divider"},{"type":"section","text":` + text + `}]`))
	if err != nil {
		t.Fatal(err)
	}
	limitBlocks(blocks)
	total := 0
	for _, b := range blocks.BlockSet {
		if b.BlockType() != "divider" {
			checkBlock(t, b)
		}
	}
	for _, o := range texts(blocks.BlockSet) {
		total += utf16Len(o.Text)
		checkText(t, o.Text)
	}
	if total > maxTotal+20 { // a mark for each text without room
		t.Errorf("%d characters", total)
	}
}

// Whatever names and values a producer sends, the message of a template mentions no user.
func TestTemplatesOfHostileMembers(t *testing.T) {
	t.Parallel()
	const object = `{"id":"%3C!channel%3E","state":"PCFjaGFubmVsPg==","error":"",` +
		`"<!channel>":{"<!here>":[{"<!everyone>":1}]}}`
	batch := relay.Delivery{
		ID: "d", Digest: &relay.Digest{Count: 2},
		Notifications: []relay.Notification{note("n1", "container.error", object, emptyContext)},
	}
	for _, source := range []string{
		"{{ . }}", "{{ .Raw }}", "{{ toJson . }}", "{{ .Data }}",
		"{{ range .Notifications }}{{ .Data.object }}{{ end }}",
		"{{ range .Notifications }}{{ range $name, $value := .Data.object }}{{ $name }} {{ toJson $value }}{{ end " +
			"}}{{ end }}",
		"{{ range .Notifications }}{{ urlUnescape .Object.ID }}{{ end }}",
		"{{ range .Notifications }}{{ b64dec .Object.State }} {{ base64decode .Data.object.state }}{{ end }}",
	} {
		s := openTest(t, &Config{URL: "http://127.0.0.1:1/", TextTemplate: source})
		for _, d := range []relay.Delivery{one(batch.Notifications[0]), batch} {
			m, err := s.buildMessage(t.Context(), d)
			if err != nil || strings.Contains(m.Text, "<!") || !strings.Contains(m.Text, "&lt;!channel") {
				t.Errorf("%s says %v, %v", source, m, err)
			}
		}
	}
}
