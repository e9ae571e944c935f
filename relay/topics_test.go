package relay

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestTopics_MatchSpecification(t *testing.T) {
	text, err := os.ReadFile("testdata/topics.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(string(text))
	var got []string
	meanings := map[string]string{}
	for _, topic := range Topics() {
		got = append(got, topic.Name)
		if !strings.HasSuffix(topic.Meaning, ".") {
			t.Errorf("%s: meaning %q does not end with a period", topic.Name, topic.Meaning)
		}
		if other, twice := meanings[topic.Meaning]; twice {
			t.Errorf("%s and %s have the same meaning", topic.Name, other)
		}
		meanings[topic.Meaning] = topic.Name
	}
	if len(got) != 93 {
		t.Errorf("got %d topics, want 93", len(got))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the topics differ from testdata/topics.txt:\n%v", got)
	}
}

func newCatalog(t testing.TB, extra ...string) *Catalog {
	t.Helper()
	c, err := NewCatalog(extra)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCatalog(t *testing.T) {
	c := newCatalog(t, "backup.finished", "container.created", "x-y_z.1")
	if got := len(c.Names()); got != 95 {
		t.Errorf("got %d names, want 95", got)
	}
	for topic, want := range map[string]bool{
		"container.created": true, "backup.finished": true, "x-y_z.1": true,
		"": false, "Container.created": false, "container.created ": false, "hubrelay.sink.disabled": false,
	} {
		if got := c.Contains(topic); got != want {
			t.Errorf("Contains(%q) = %v", topic, got)
		}
		if name, got := c.Lookup([]byte(topic)); got != want || got && name != topic {
			t.Errorf("Lookup(%q) = %q, %v", topic, name, got)
		}
	}
	c.Names()[0] = "changed"
	if c.Names()[0] != "billing.credit.state.changed" {
		t.Error("Names returns the internal slice")
	}
}

func TestNewCatalog_RejectsBadExtraTopics(t *testing.T) {
	for _, tc := range []struct{ name, want string }{
		{"", "is empty"},
		{"Backup.done", `'B'`},
		{"backup done", `' '`},
		{"backup.*", `'*'`},
		{"backup.\xff", "character"},
		{"hubrelay.sink.disabled", "reserved for the relay"},
		{strings.Repeat("a", 257), "longer than 256 bytes"},
	} {
		_, err := NewCatalog([]string{"fine.topic", tc.name})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: got %v, want %q in it", tc.name, err, tc.want)
		}
	}
}

func TestCatalog_Suggest(t *testing.T) {
	c := newCatalog(t, "backup.finished")
	for topic, want := range map[string]string{
		"container.craeted":                 "container.created",
		"Container.Created":                 "container.created",
		" container.created\n":              "container.created",
		"containers.created":                "container.created",
		"container.instance.health.status":  "container.instance.health.status.changed",
		"backup.finish":                     "backup.finished",
		"something.else.entirely.different": "",
		"":                                  "",
		"\xff\xfe":                          "",
		strings.Repeat("container", 1000):   "",
	} {
		if got := c.Suggest(topic); got != want {
			t.Errorf("Suggest(%q) = %q, want %q", Truncate(topic, 40), got, want)
		}
	}
}

func TestPatternDistance(t *testing.T) {
	for _, tc := range []struct {
		pattern, name string
		want          int
	}{
		{"*", "anything", 0},
		{"*", "", 0},
		{"a*c", "abbbc", 0},
		{"a*d", "abbbc", 1},
		{"contaner.*", "container.created", 1},
		{"*.eror", "job.error", 1},
	} {
		if got := patternDistance([]byte(tc.pattern), []byte(tc.name)); got != tc.want {
			t.Errorf("patternDistance(%q, %q) = %d, want %d", tc.pattern, tc.name, got, tc.want)
		}
	}
}

func TestTruncate(t *testing.T) {
	for _, tc := range []struct {
		s     string
		limit int
		want  string
	}{
		{"short", 5, "short"}, {"longer", 4, "long…"}, {"aé", 2, "a…"}, {"日本", 4, "日…"}, {"日", 1, "…"},
	} {
		if got := Truncate(tc.s, tc.limit); got != tc.want {
			t.Errorf("Truncate(%q, %d) = %q, want %q", tc.s, tc.limit, got, tc.want)
		}
	}
}
