package cursor

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestCursorsComeBack(t *testing.T) {
	now := uint64(1_795_000_000_000)
	many := make([]Position, 300)
	for i := range many {
		many[i] = Position{now - uint64(i*i*1000), uint64(i % 3)}
	}
	for _, tt := range []struct {
		name              string
		partitions, first int
		at                []Position
		longest           int
	}{
		{"the only partition", 1, 0, []Position{{now, 0}}, 16},
		{"one of many", 1024, 1023, []Position{{now, 7}}, 20},
		{"the beginning", 1, 0, []Position{{}}, 8},
		{"before the first of a millisecond", 2, 1, []Position{{now - 1, math.MaxUint64}}, 32},
		{"two", 2, 0, []Position{{now, 3}, {now - 5000, 0}}, 24},
		{"many that saw nothing", 16, 0, append(make([]Position, 15), Position{now, 1}), 40},
		{"many", 300, 0, many, 2600},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := string(Append(nil, tt.partitions, tt.first, tt.at))
			if len(text) > tt.longest || strings.ContainsAny(text, "+/= &?#\n") {
				t.Errorf("%d characters: %s", len(text), text)
			}
			c, err := Parse(text, tt.partitions)
			if err != nil {
				t.Fatal(err)
			}
			for p := range tt.partitions {
				got, ok := c.At(p)
				if known := p >= tt.first && p < tt.first+len(tt.at); ok != known || known && got != tt.at[p-tt.first] {
					t.Errorf("partition %d: %v %v", p, got, ok)
				}
			}
		})
	}
}

func TestBadCursors(t *testing.T) {
	good := string(Append(nil, 2, 0, []Position{{1_795_000_000_000, 1}, {1_795_000_000_000, 2}}))
	for _, text := range []string{
		"", "x", "0-0", "1795000000000-1", good[1:], good[:len(good)-1], good + "A", good + "=", " " + good,
		strings.Repeat("A", 40), "EAEA", "EQEA", string(Append(nil, 2, 2, []Position{{1, 1}})),
		string(Append(nil, most+1, 0, []Position{{1, 1}})),
	} {
		if c, err := Parse(text, 2); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: %v %v", text, c, err)
		}
	}
	for i := range good { // one character wrong
		for _, other := range "AZ9_" {
			if text := good[:i] + string(other) + good[i+1:]; text != good {
				if _, err := Parse(text, 2); err == nil {
					t.Errorf("%q passes for %q", text, good)
				}
			}
		}
	}
	if _, err := Parse(good, 4); err == nil || !strings.Contains(err.Error(), "2 partitions") {
		t.Errorf("another number of partitions: %v", err)
	}
}

func TestPositions(t *testing.T) {
	for _, id := range []string{"", "1", "-", "1-", "-1", "a-1", "1-a", "1-2-3", "18446744073709551616-0"} {
		if p, ok := ParsePosition(id); ok {
			t.Errorf("%q passes for %v", id, p)
		}
	}
	for _, tt := range []struct{ at, before string }{{"5-3", "5-2"}, {"5-0", "4-18446744073709551615"}, {"0-1", "0-0"}, {"0-0", "0-0"}} {
		p, ok := ParsePosition(tt.at)
		if got := p.Before(); !ok || p.String() != tt.at || got.String() != tt.before || got.Compare(p) > 0 {
			t.Errorf("before %s is %s, want %s", tt.at, got, tt.before)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("", 1)
	f.Add(string(Append(nil, 1, 0, []Position{{1_795_000_000_000, 1}})), 1)
	f.Add(string(Append(nil, 3, 1, []Position{{5, math.MaxUint64}})), 3)
	f.Add(string(Append(nil, 3, 0, []Position{{}, {5, 6}, {7, 0}})), 3)
	f.Fuzz(func(t *testing.T, text string, partitions int) {
		c, err := Parse(text, partitions)
		if err != nil {
			return
		}
		again, err := Parse(string(Append(nil, partitions, c.first, c.at)), partitions)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(c) {
			t.Errorf("%v came back as %v: %v", c, again, err)
		}
	})
}

func Example() {
	text := Append(nil, 1, 0, []Position{{1_795_000_000_000, 4}})
	c, err := Parse(string(text), 1)
	at, _ := c.At(0)
	fmt.Println(string(text), at, err)
	// Output: EQGAvNnynjQBBFa0 1795000000000-4 <nil>
}
