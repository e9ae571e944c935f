package slack

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	slackgo "github.com/slack-go/slack"

	"github.com/hubrelay/hubrelay/relay"
)

var update = flag.Bool("update", false, "write the golden files anew")

// note makes a notification as the ingest would, with the members of object and context given as JSON.
func note(id, topic, object, context string) relay.Notification {
	data := fmt.Sprintf(`{"topic":%q,"object":%s,"context":%s,"flags":null}`, topic, object, context)
	var n relay.Notification
	var c struct{ Context relay.Context }
	_ = json.Unmarshal([]byte(data), &c)
	n = relay.Notification{
		ID: id, Topic: topic, Hub: "hub1", Account: "acc1", Cursor: "1795235000123-0", Data: []byte(data),
	}
	return n
}

// sampleOf returns a sample as sinks test sends it.
func sampleOf(topic, object string) relay.Notification {
	n := note("0123456789abcdef01234567", topic, object, emptyContext)
	n.Data = append(n.Data[:len(n.Data)-1:len(n.Data)-1], `,"sample":true}`...)
	n.Cursor = ""
	return n
}

const fullContext = `{"hub_id":"5f1b0c2d3e4f5a6b7c8d9e0f","account_id":"5e0a1b2c3d4e5f6a7b8c9d0e",` +
	`"environments":["env-a"],` +
	`"dns_zones":["zone-1"],"clusters":["production","staging"],"containers":["c1","c2","c3"]}`

const emptyContext = `{"hub_id":"hub1","account_id":"","environments":[],"dns_zones":[],"clusters":[],"containers":[]}`

func one(n relay.Notification) relay.Delivery {
	return relay.Delivery{ID: n.ID, Attempt: 1, Notifications: []relay.Notification{n}}
}

func many(n int) relay.Delivery {
	d := relay.Delivery{ID: "batch-0001", Attempt: 1}
	for i := range n {
		id := fmt.Sprintf("%024x", i)
		object := fmt.Sprintf(`{"id":"obj-%d","state":"running","previous_state":"starting","error":""}`, i)
		topic := "container.state.changed"
		if i%5 == 4 {
			topic, object = "container.error", fmt.Sprintf(`{"id":"obj-%d","state":"","error":"image %d not found"}`, i,
				i)
		}
		note := note(id, topic, object, fullContext)
		note.Cursor = fmt.Sprintf("%d-0", 1795235000000+i*1000)
		d.Notifications = append(d.Notifications, note)
	}
	return d
}

const hostile = `<!channel> <https://evil.example|click> <@U123> &lt;!here&gt; *bold* _x_ ~y~ :fire: ` +
	"`code` ```block```" + ` @everyone #general https://evil.example`

func quoted(s string) string { b, _ := json.Marshal(s); return string(b) }

func goldens() map[string]relay.Delivery {
	nasty := quoted(hostile + strings.Repeat(" & and more", 600))
	all := digestGoldens()
	maps.Copy(all, map[string]relay.Delivery{
		"state": one(note("0123456789abcdef01234567", "container.instance.state.changed",
			`{"id":"inst-7","state":"running","error":"","previous_state":"starting"}`, fullContext)),
		"error": one(note("0123456789abcdef01234567", "container.instance.error",
			`{"id":"inst-7","state":"failed","error":"pull: image registry.example/app:1.2 not found\n  after 3 `+
				`attempts"}`, fullContext)),
		"unhealthy": one(note("0123456789abcdef01234567", "container.instance.health.status.changed",
			`{"id":"inst-7","state":"unhealthy","error":""}`, fullContext)),
		"created": one(note("0123456789abcdef01234567", "dns.zone.created", `{"id":"z1","state":"","error":""}`,
			emptyContext)),
		"extra_topic": one(note("0123456789abcdef01234567", "acme.backup.done", `{"id":"b1","state":"","error":""}`,
			emptyContext)),
		"sink_disabled": one(relay.Notification{
			ID: "6b01cc5f000000d3e258604f", Topic: relay.TopicSinkDisabled,
			Data: []byte(
				`{"topic":"hubrelay.sink.disabled","object":{"id":"billing","state":"disabled","error":"post to ` +
					`hooks.example.com: ` +
					`status 410"},"context":{"hub_id":"","account_id":"","environments":[],"dns_zones":[],` +
					`"clusters":[],` +
					`"containers":[]},"flags":null}`),
		}),
		"sink_recovered": one(note("0123456789abcdef01234567", relay.TopicSinkRecovered,
			`{"id":"billing","state":"active","error":""}`, emptyContext)),
		"sample": one(sampleOf("container.error", `{"state":"","error":""}`)),
		"sample_dead": one(sampleOf(relay.TopicDeadLetterCreated,
			`{"id":"000000000000000000000000","state":"permanent","error":"status 400",`+
				`"sink":"sample","topic":"container.created","attempts":1,"count":1}`)),
		"dead_letter": one(note("0123456789abcdef01234567", relay.TopicDeadLetterCreated,
			`{"id":"765432100123456789abcdef","state":"permanent","error":"post to hooks.example.com: status 400",`+
				`"sink":"billing","topic":"billing.credit.error","attempts":1,"count":38}`, emptyContext)),
		"hostile": one(note("0123456789abcdef01234567", "container.error",
			`{"id":`+quoted(hostile)+`,"state":`+quoted(hostile)+`,"error":`+nasty+`}`,
			`{"hub_id":"hub1","account_id":"a","environments":[`+nasty+`],"dns_zones":[],"clusters":[],"containers":[`+
				strings.TrimSuffix(strings.Repeat(`"0123456789abcdef01234567",`, 57), ",")+`]}`)),
		"batch_small": many(6),
		"batch_large": many(84),
	})
	return all
}

func TestGolden(t *testing.T) {
	t.Parallel()
	r := newRenderer()
	for name, d := range goldens() {
		t.Run(name, func(t *testing.T) {
			m := r.renderDelivery(d)
			checkMessage(t, m)
			compare(t, name, m)
		})
	}
}

// texts are all strings that Slack shows of a message.
func texts(blocks []slackgo.Block) []*slackgo.TextBlockObject {
	var out []*slackgo.TextBlockObject
	for _, b := range blocks {
		switch b := b.(type) {
		case *slackgo.HeaderBlock:
			out = append(out, b.Text)
		case *slackgo.SectionBlock:
			if b.Text != nil {
				out = append(out, b.Text)
			}
			out = append(out, b.Fields...)
		case *slackgo.ContextBlock:
			for _, e := range b.ContextElements.Elements {
				if text, ok := e.(*slackgo.TextBlockObject); ok {
					out = append(out, text)
				}
			}
		}
	}
	return out
}

// checkMessage sends the message through JSON, decodes it with slack-go, and holds it to Slack's limits.
func checkMessage(t *testing.T, m *slackgo.WebhookMessage) {
	t.Helper()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var back slackgo.WebhookMessage
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatalf("slack-go cannot read the message: %v", err)
	}
	if again, err := json.Marshal(&back); err != nil || !bytes.Equal(again, data) {
		t.Errorf("the message is another after slack-go read it (%v):\n%s\n%s", err, data, again)
	}
	if back.Text == "" || utf16Len(back.Text) > 40_000 || len(back.Attachments) > 100 {
		t.Errorf("text of %d, %d attachments", utf16Len(back.Text), len(back.Attachments))
	}
	all := back.Blocks.BlockSet
	checkText(t, back.Text)
	for _, a := range back.Attachments {
		if len(a.Blocks.BlockSet) == 0 || a.Color == "" {
			t.Errorf("attachment with %d blocks, colour %q", len(a.Blocks.BlockSet), a.Color)
		}
		checkText(t, a.Fallback)
		all = append(all, a.Blocks.BlockSet...)
	}
	if len(all) > maxBlocks {
		t.Errorf("%d blocks", len(all))
	}
	for _, b := range all {
		checkBlock(t, b)
	}
	total := 0
	for _, o := range texts(all) {
		total += utf16Len(o.Text)
		checkText(t, o.Text)
		if o.Type == slackgo.MarkdownType && !o.Verbatim {
			t.Errorf("Slack would look for links in %q", o.Text)
		}
	}
	if total > maxTotal {
		t.Errorf("%d characters in all blocks", total)
	}
}

func checkBlock(t *testing.T, b slackgo.Block) {
	t.Helper()
	limit := func(what string, o *slackgo.TextBlockObject, most int) {
		if o != nil && (o.Text == "" || utf16Len(o.Text) > most) {
			t.Errorf("%s of %d characters", what, utf16Len(o.Text))
		}
	}
	switch b := b.(type) {
	case *slackgo.HeaderBlock:
		limit("header", b.Text, 150)
	case *slackgo.SectionBlock:
		limit("section", b.Text, 3000)
		if len(b.Fields) > 10 || b.Text == nil && len(b.Fields) == 0 {
			t.Errorf("%d fields", len(b.Fields))
		}
		for _, f := range b.Fields {
			limit("field", f, 2000)
		}
	case *slackgo.ContextBlock:
		if n := len(b.ContextElements.Elements); n == 0 || n > 10 {
			t.Errorf("%d elements", n)
		}
		limit("context", texts([]slackgo.Block{b})[0], 2000)
	default:
		t.Errorf("a block of type %s", b.BlockType())
	}
}

// checkText finds what Slack would take for markup that is not ours, and characters that were cut.
func checkText(t *testing.T, s string) {
	t.Helper()
	if strings.ContainsAny(s, "<>") || !utf8.ValidString(s) || strings.ContainsRune(s, utf8.RuneError) &&
		!strings.Contains(s, "\uFFFD") {
		t.Errorf("unsafe text %q", s)
	}
	for rest := s; ; {
		_, after, found := strings.Cut(rest, "&")
		if !found {
			break
		}
		if !strings.HasPrefix(after, "amp;") && !strings.HasPrefix(after, "lt;") && !strings.HasPrefix(after, "gt;") {
			t.Errorf("an escape that is none in %q", s)
			break
		}
		rest = after
	}
}

// Every topic has a header in words, and says its state.
func TestHeadlines(t *testing.T) {
	t.Parallel()
	r := newRenderer()
	for _, topic := range relay.Topics() {
		m := r.renderDelivery(one(note("a", topic.Name, `{"id":"x","state":"ready","error":""}`, emptyContext)))
		header := texts(m.Blocks.BlockSet)[0].Text
		want := strings.TrimSuffix(topic.Meaning, ".") + ": ready"
		if topic.Name == topicHealth {
			want = "An instance's health check says ready"
		}
		if header != want && !strings.HasSuffix(header, ellipsis) {
			t.Errorf("%s: header %q, want %q", topic.Name, header, want)
		}
		checkMessage(t, m)
	}
}

// Only what a test sends is called one.
func TestSample(t *testing.T) {
	t.Parallel()
	test := sampleOf("container.error", `{"state":"","error":"oops"}`)
	published, untrue, odd := test, test, test
	published.Cursor = "1795235000123-0"
	untrue.Data = bytes.Replace(test.Data, []byte(`:true`), []byte(`:false`), 1)
	odd.Data = bytes.Replace(test.Data, []byte(`:true`), []byte(`:["true"]`), 1)
	digest := one(test)
	digest.ID, digest.Digest = "6560c2a0fedcba9876543210", &relay.Digest{
		Count: 1, Topics: map[string]int{test.Topic: 1},
	}
	for name, c := range map[string]struct {
		d    relay.Delivery
		want bool
	}{
		"a test": {one(test), true}, "a test of a digest": {digest, true},
		"published": {one(published), false}, "false": {one(untrue), false}, "odd": {one(odd), false},
	} {
		m := newRenderer().renderDelivery(c.d)
		checkMessage(t, m)
		all := texts(m.Blocks.BlockSet)
		said := len(all) == 2 && strings.HasPrefix(all[1].Text, "A sample sent by `hubrelay sinks test`")
		if strings.HasPrefix(m.Text, "Test: ") != c.want || strings.HasPrefix(all[0].Text, "Test: ") != c.want ||
			strings.HasPrefix(m.Attachments[0].Fallback, "Test: ") != c.want || said != c.want {
			t.Errorf("%s: %q, %q", name, m.Text, all[0].Text)
		}
		if neutral := m.Attachments[0].Color == severityColor(quiet); neutral != c.want {
			t.Errorf("%s: colour %s", name, m.Attachments[0].Color)
		}
	}
}

// Unreadable notifications are shown too.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"", "null", "[]", `{"object":1}`, `{"object":{"state":{}},"context":"x"}`} {
		n := relay.Notification{ID: "id1", Topic: "container.error", Hub: "hub9", Data: []byte(data)}
		m := newRenderer().renderDelivery(one(n))
		checkMessage(t, m)
		text, _ := json.Marshal(m)
		for _, want := range []string{"Something went wrong with a container", "hub9", "id1"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s: %s lacks %q", data, text, want)
			}
		}
	}
	if data, err := json.Marshal(newRenderer().renderDelivery(relay.Delivery{})); err != nil ||
		!strings.Contains(string(data), "header") {
		t.Errorf("a delivery of nothing: %s, %v", data, err)
	}
}

// Nothing of a batch is left out without being counted.
func TestBatchCounts(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3, 46, 47, 48, 84, 500} {
		d := many(n)
		m := newRenderer().renderDelivery(d)
		checkMessage(t, m)
		text, _ := json.Marshal(m)
		shown := 0
		for _, one := range d.Notifications {
			if strings.Contains(string(text), one.ID) {
				shown++
			}
		}
		more := fmt.Sprintf("and %d more*", n-shown)
		if got := strings.Contains(string(text), more); got != (shown < n) {
			t.Errorf("%d of %d shown, and %q is there: %v", shown, n, more, got)
		}
		if errors := strings.Count(string(text), "not found"); n < 100 && errors < n/5 {
			t.Errorf("%d of %d: only %d of %d errors are listed", shown, n, errors, n/5)
		}
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	family := "👩\u200d👩\u200d👧"
	for _, c := range []struct {
		in    string
		limit int
		want  string
	}{
		{"abc", 3, "abc"},
		{"abcd", 3, "ab…"},
		{"a&b", 5, "a…"},
		{"a&b", 7, "a&amp;b"},
		{"a&", 6, "a&amp;"},
		{"<!channel>", 100, "&lt;!channel&gt;"},
		{"é" + "e\u0301e\u0301", 4, "ée\u0301…"},
		{"e\u0301e\u0301", 3, "e\u0301…"},
		{family + "x", 8, ellipsis},
		{family + "x", 9, family + "x"},
		{"🇩🇪🇫🇷", 7, "🇩🇪…"},
		{"👍🏽👍🏽", 7, "👍🏽…"},
		{"€€€", 2, "€…"},
		{"", 1, ""},
		{"ab", 1, ellipsis},
	} {
		if got := escapeAndTruncate(c.in, c.limit); got != c.want {
			t.Errorf("fit(%q, %d) = %q, want %q", c.in, c.limit, got, c.want)
		}
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	if got := cleanLine(" a\t\nb\u202Ec\x00\x1b[31m\u2028d "); got != "a bc[31m d" {
		t.Errorf("clean gave %q", got)
	}
	if got := cleanLines("\n  a\r\n\tb\x07\n\n"); got != "a\n\tb" {
		t.Errorf("cleanLines gave %q", got)
	}
	if got := codeBlock("a ``` b", 100); strings.Count(got, "`") != 6 {
		t.Errorf("codeBlock gave %q", got)
	}
	if got := formatCodes([]string{"a", "", "b", "c"}, 2, 100); got != "`a`, `b` and 1 more" {
		t.Errorf("codes gave %q", got)
	}
}

func TestPreviousState(t *testing.T) {
	t.Parallel()
	for object, want := range map[string]string{
		`{"previous_state":"a"}`: "a", `{"old_state":"b"}`: "b", `{"state_before":"c"}`: "c",
		`{"previous_state":1}`:    "",
		`{"previous_state":null}`: "", `{}`: "", `{"Previous_State":"a"}`: "",
	} {
		if got := previousState([]byte(`{"object":` + object + `}`)); got != want {
			t.Errorf("%s: %q, want %q", object, got, want)
		}
	}
}

func BenchmarkBatch(b *testing.B) {
	r, d := newRenderer(), many(84)
	b.ReportAllocs()
	for b.Loop() {
		_ = r.renderDelivery(d)
	}
}
