package slack

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	slackgo "github.com/slack-go/slack"

	"github.com/hubrelay/hubrelay/internal/samples"
	"github.com/hubrelay/hubrelay/relay"
)

// rude contains everything that a producer could abuse: markup, mentions, links, right-to-left letters, direction
// controls, emoji, and 50 KB of it.
const rude = hostile + " \u05e9\u05dc\u05d5\u05dd \u202etxt.exe\u202c 👩\u200d👩\u200d👧 🇩🇪 "

var (
	rudeText = rude + strings.Repeat("& more 🔥 ", 50_000/len("& more 🔥 "))
	textOf   = `*{{ .Meaning }}* of {{ if .Digest }}{{ .Digest.Count }}{{ else }}{{ .Object.ID }}{{ end }}: {{ ` +
		`.Object.State | default "no state" }}{{ with .Object.Error }}` + "\n```{{ . }}```" + `{{ end }}`
	blocksOf3 = `[{"type": "header", "text": {"type": "plain_text", "text": {{ toJson .Object.ID }}}},` +
		`{"type": "section", "text": {"type": "mrkdwn", "text": {{ printf "*%s*\n` + "```%s```" +
		`" .Meaning (.Object.Error | default .Object.State) | toJson }}}},` +
		`{"type": "context", "elements": [{"type": "mrkdwn", "text": {{ printf "Hub %s" .Hub | toJson }}}]}]`
)

// stories returns sequences of notifications and digests with configurations of the sink.
func stories() map[string]struct {
	config     Config
	deliveries []relay.Delivery
} {
	container := []relay.Delivery{
		happened(1, "container.error", "c1", "", "pull: image \"app:1.2\" not found & <none> of 3 mirrors has it"),
		happened(2, "container.state.changed", "c1", "starting", ""),
		happened(3, "container.state.changed", "c1", "running", ""),
	}
	digest := []relay.Delivery{samples.Digest([]string{"container.error", "job.state.changed"})}
	nasty := []relay.Delivery{
		happened(1, "container.error", rude, rude, rudeText),
		happened(2, "container.error", rude, rude, rudeText),
	}
	return map[string]struct {
		config     Config
		deliveries []relay.Delivery
	}{
		"container": {Config{}, container},
		"job": {Config{}, []relay.Delivery{
			happened(1, "job.created", "j1", "new", ""),
			happened(2, "job.state.changed", "j1", "running", ""),
			happened(3, "job.state.changed", "j1", "error", "the server does not respond"),
		}},
		"alone":   {Config{}, []relay.Delivery{happened(1, "dns.zone.created", "", "", "")}},
		"digest":  {Config{}, digest},
		"hostile": {Config{}, nasty},
		"link": {Config{
			LinkTemplate: "https://portal.example.com/{{ .Object.ID | urlquery }}?a=1&b=2",
		}, container[:2]},
		"text":            {Config{TextTemplate: textOf}, container},
		"text_digest":     {Config{TextTemplate: textOf}, digest},
		"text_hostile":    {Config{TextTemplate: textOf}, nasty},
		"blocks":          {Config{BlocksTemplate: blocksOf3}, container},
		"blocks_digest":   {Config{BlocksTemplate: strings.ReplaceAll(blocksOf3, ".Object.ID", ".Delivery")}, digest},
		"blocks_hostile":  {Config{BlocksTemplate: blocksOf3}, nasty},
		"blocks_and_text": {Config{BlocksTemplate: blocksOf3, TextTemplate: textOf}, container[:2]},
	}
}

// TestThreadGolden compares the posts and updates for a container, a job, a digest and others with reviewed files.
func TestThreadGolden(t *testing.T) {
	t.Parallel()
	for name, story := range stories() {
		t.Run(name, func(t *testing.T) {
			w, url := newWorkspace(t)
			story.config.APIURL = url
			s := openApp(t, &story.config, newNotes())
			for _, d := range story.deliveries {
				if err := s.Deliver(t.Context(), d); err != nil {
					t.Fatal(err)
				}
			}
			templated := story.config.TextTemplate+story.config.BlocksTemplate+story.config.LinkTemplate != ""
			for _, c := range w.sent {
				checkCall(t, c, templated)
			}
			compare(t, "thread_"+name, abridged(t, w.sent))
		})
	}
}

// abridged omits the middle of long texts.
func abridged(t *testing.T, calls []sentCall) any {
	t.Helper()
	var all any
	text, err := json.Marshal(calls)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	var walk func(any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case string:
			if r := []rune(v); len(r) > 800 {
				return fmt.Sprintf("%s [%d characters left out] %s", string(r[:600]), len(r)-700,
					string(r[len(r)-100:]))
			}
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		case map[string]any:
			for name := range v {
				v[name] = walk(v[name])
			}
		}
		return v
	}
	return walk(all)
}

// compare holds what is shown to a golden file.
func compare(t *testing.T, name string, shown any) {
	t.Helper()
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(shown); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", name+".json")
	if *update {
		if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text.String()); diff != "" {
		t.Errorf("run go test -update and read the difference:\n%s", diff)
	}
}

// checkCall holds a message to Slack's limits. What an operator's template makes may hold markup.
func checkCall(t *testing.T, c sentCall, templated bool) {
	t.Helper()
	var m slackgo.WebhookMessage
	if err := json.Unmarshal(c.Message, &m); err != nil {
		t.Fatalf("slack-go cannot read the message: %v", err)
	}
	if !templated {
		if m.Blocks == nil {
			t.Fatal("a message without blocks")
		}
		m.Channel, m.ThreadTimestamp = "", ""
		checkMessage(t, &m)
		return
	}
	if m.Text == "" || utf16Len(m.Text) > 40_000 || c.Method == methodUpdate && len(m.Text) > 4_000 {
		t.Errorf("a text of %d characters", utf16Len(m.Text))
	}
	checkMentions(t, m.Text)
	if m.Blocks == nil {
		return
	}
	for _, b := range m.Blocks.BlockSet {
		checkBlock(t, b)
	}
	for _, o := range texts(m.Blocks.BlockSet) {
		checkMentions(t, o.Text)
	}
}

// checkMentions finds what would call people.
func checkMentions(t *testing.T, text string) {
	t.Helper()
	if strings.Contains(text, "<!") || strings.Contains(text, "<@") || strings.Contains(text, "<#") ||
		strings.Contains(text, "<https://evil") {
		t.Errorf("calls somebody: %.300q", text)
	}
}
