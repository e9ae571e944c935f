package term

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestPrintTable_Fits(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	long := strings.Repeat("long-", 30)
	err := PrintTable(&out, Palette{}, []Column{
		{Title: "NAME", MaxWidth: 20},
		{Title: "N", Right: true},
		{Title: "TOPICS"},
	}, [][]string{
		{"a", "7", "x"}, {long, "12345", long}, {"für", "1", "·"},
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 || lines[1] != "a"+strings.Repeat(" ", 25)+"7  x" || !strings.HasSuffix(lines[2], "…") {
		t.Errorf("printed\n%s", out.String())
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > TableWidth || strings.Contains(line, long) {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// Columns are omitted in the order of DropOrder until the others fit.
func TestPrintTable_OmitsColumns(t *testing.T) {
	t.Parallel()
	columns := []Column{
		{Title: "NAME"},
		{Title: "TYPE", DropOrder: 1},
		{Title: "NOTE", DropOrder: 2},
		{Title: "TOPICS", DropOrder: 3},
	}
	for _, c := range []struct {
		name, note, want string
	}{
		{"a", "b", "NAME  TYPE  NOTE  TOPICS"},
		{strings.Repeat("a", 50), strings.Repeat("b", 20), "NAME  TYPE  NOTE  TOPICS"},
		{strings.Repeat("a", 50), strings.Repeat("b", 40), "NAME  TYPE  NOTE"},
		{strings.Repeat("a", 80), strings.Repeat("b", 60), "NAME  TYPE"},
		{strings.Repeat("a", 110), "b", "NAME"},
	} {
		var out bytes.Buffer
		row := []string{c.name, "webhook", c.note, strings.Repeat("topic,", 20)}
		if err := PrintTable(&out, Palette{}, columns, [][]string{row}); err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(out.String(), "\n")
		if got := strings.Join(strings.Fields(head), "  "); got != c.want || row[3] == "" {
			t.Errorf("widths %d and %d: got %s, want %s", len(c.name), len(c.note), got, c.want)
		}
	}
}

// On a terminal the reason has priority over other columns. Without a terminal nothing is truncated.
func TestPrintTableWithin(t *testing.T) {
	t.Parallel()
	columns := []Column{
		{Title: "ID"},
		{Title: "HUB", MaxWidth: 4, DropOrder: 2},
		{Title: "TRIES", DropOrder: 1},
		{Title: "REASON", MinWidth: 20},
	}
	long := strings.Repeat("x", 300)
	row := func(reason string) []string { return []string{"one", "hub-1", "1", reason} }
	for _, c := range []struct {
		width        int
		reason, want string
	}{
		{0, long, "ID   HUB    TRIES  REASON\none  hub-1  1      " + long + "\n"},
		{30, "short", "ID   HUB   TRIES  REASON\none  hub…  1      short\n"},
		{38, long, "ID   HUB   TRIES  REASON\none  hub…  1      " + long[:19] + "…\n"},
		{37, long, "ID   TRIES  REASON\none  1      " + long[:24] + "…\n"},
		{27, long, "ID   REASON\none  " + long[:21] + "…\n"},
	} {
		var out bytes.Buffer
		if err := PrintTableWithin(&out, Palette{}, c.width, columns, [][]string{row(c.reason)}); err != nil ||
			out.String() != c.want {
			t.Errorf("%d columns: %v\n%swant\n%s", c.width, err, out.String(), c.want)
		}
	}
	if columns[1].MaxWidth != 4 {
		t.Error("PrintTableWithin() changed its argument")
	}
}

func TestFormat(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0: "0", 99_999: "99999", 100_000: "100k", 999_999: "999k", 1_000_000: "1.0M", 12_345_678: "12.3M",
		123_456_789: "123M",
	} {
		if got := FormatCount(n); got != want {
			t.Errorf("FormatCount(%d) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1 << 10: "1.0 KiB", 3 << 19: "1.5 MiB", 5 << 30: "5.0 GiB",
	} {
		if got := FormatBytes(n); got != want {
			t.Errorf("FormatBytes(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m",
		47 * time.Hour: "47h", 72 * time.Hour: "3d",
	} {
		if got := FormatAge(d); got != want {
			t.Errorf("FormatAge(%s) = %q, want %q", d, got, want)
		}
	}
	if got := FormatAgo(time.Time{}); got != "-" {
		t.Errorf("got %q for the zero time, want -", got)
	}
}
