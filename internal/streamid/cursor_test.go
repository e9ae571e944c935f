package streamid

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
)

var testCursors = NewCursors(CursorKey{})

func TestCursor_RoundTrip(t *testing.T) {
	now := uint64(1_795_000_000_000)
	many := make([]Position, 300)
	for i := range many {
		many[i] = Position{now - uint64(i*i*1000), uint64(i % 3), uint16(i * 1000)}
	}
	for _, tt := range []struct {
		name              string
		partitions, first int
		positions         []Position
		maxLen            int
	}{
		{"the only partition", 1, 0, []Position{{now, 0, 1}}, 36},
		{"one of many", 1024, 1023, []Position{{now, 7, 65535}}, 40},
		{"the beginning", 1, 0, []Position{{}}, 26},
		{"before the first of a millisecond", 2, 1, []Position{{MS: now - 1, Seq: math.MaxUint64}}, 50},
		{"two", 2, 0, []Position{{now, 3, 256}, {now - 5000, 0, 255}}, 46},
		{"many at the beginning", 16, 0, append(make([]Position, 15), Position{now, 1, 1}), 59},
		{"many", 300, 0, many, 3400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := string(testCursors.Append(nil, tt.partitions, tt.first, tt.positions))
			if len(text) > tt.maxLen || strings.ContainsAny(text, "+/= &?#\n") {
				t.Errorf("got %d characters, want at most %d without special ones: %s", len(text), tt.maxLen, text)
			}
			c, err := testCursors.Parse(text, tt.partitions)
			if err != nil {
				t.Fatal(err)
			}
			for p := range tt.partitions {
				got, ok := c.At(p)
				known := p >= tt.first && p < tt.first+len(tt.positions)
				if ok != known || known && got != tt.positions[p-tt.first] {
					t.Errorf("partition %d: got %v, %t", p, got, ok)
				}
			}
		})
	}
}

// Unique cursors of the same positions differ, and are read as the same.
func TestCursors_AppendUnique(t *testing.T) {
	at := []Position{{MS: 1_795_000_000_000, Seq: 1, IDHash: 2}, {MS: 1}}
	for _, list := range [][]Position{at, at[:1]} {
		first, second := testCursors.AppendUnique(nil, 2, 0, list), testCursors.AppendUnique(nil, 2, 0, list)
		if string(first) == string(second) {
			t.Errorf("got %s twice", first)
		}
		for _, text := range [][]byte{first, second, testCursors.Append(nil, 2, 0, list)} {
			c, err := testCursors.Parse(string(text), 2)
			if err != nil || !slices.Equal(c.list, list) {
				t.Errorf("got %v, %v, want %v", c.list, err, list)
			}
		}
	}
}

// A cursor reveals nothing, and belongs to one relay.
func TestCursors_Encrypt(t *testing.T) {
	other := NewCursors(CursorKey{1})
	seen := make(map[string]bool)
	for i := range uint64(100) {
		list := []Position{{1_795_000_000_000 + i, 0, 1}}
		text := string(testCursors.Append(nil, 1, 0, list))
		if again := string(testCursors.Append(nil, 1, 0, list)); again != text {
			t.Fatalf("got cursors %s and %s of one position", text, again)
		}
		if c, err := other.Parse(text, 1); !errors.Is(err, ErrOtherLog) {
			t.Errorf("the cursor of another relay: got %v, %v, want ErrOtherLog", c, err)
		}
		raw, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if start := string(raw[1:5]); seen[start] {
			t.Errorf("consecutive positions have similar cursors: %s", text)
		} else {
			seen[start] = true
		}
		// A client that corrects the checksum still cannot choose a position.
		for k := 1; k < len(raw)-checksumLen; k++ {
			forged := slices.Clone(raw[:len(raw)-checksumLen])
			forged[k] ^= 1
			forged = binary.BigEndian.AppendUint16(forged, checksum(forged))
			c, err := testCursors.Parse(base64.RawURLEncoding.EncodeToString(forged), 1)
			if !errors.Is(err, ErrOtherLog) {
				t.Fatalf("byte %d changed: got %v, %v, want ErrOtherLog", k, c, err)
			}
		}
	}
}

// Clients may still have cursors of builds that did not encrypt them. Their streams start now, with a resync.
func TestParse_OldFormats(t *testing.T) {
	for _, text := range []string{"IQGAvNnynjQBBAAFoDQ"} {
		if c, err := testCursors.Parse(text, 1); !errors.Is(err, ErrOtherLog) {
			t.Errorf("Parse(%s): got %v, %v, want ErrOtherLog", text, c, err)
		}
	}
}

func TestCursors_ConcurrentUse(t *testing.T) {
	var users sync.WaitGroup
	for i := range uint64(8) {
		users.Go(func() {
			for k := range uint64(1000) {
				at := Position{i, k, 1}
				c, err := testCursors.Parse(string(testCursors.Append(nil, 1, 0, []Position{at})), 1)
				if got, _ := c.At(0); err != nil || got != at {
					t.Errorf("got %v, %v, want %v", got, err, at)
				}
			}
		})
	}
	users.Wait()
}

func TestParse_RejectsInvalidCursors(t *testing.T) {
	sealed := func(content ...byte) string {
		b := append(append([]byte{cursorVersion}, make([]byte, ivLen)...), content...)
		scratch, _ := testCursors.scratch.Get().(*cursorScratch)
		testCursors.sealContent(scratch, b[1:])
		return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint16(b, checksum(b)))
	}
	cut := sealed(contentAll, 2, 1, 1, 1) // the second position is missing
	good := string(testCursors.Append(nil, 2, 0, []Position{{1_795_000_000_000, 1, 10}, {1_795_000_000_000, 2, 20}}))
	for _, text := range []string{
		sealed(), sealed(9), "", "x", "0-0", "1795000000000-1", good[1:], good[:len(good)-1], good + "A", good + "=",
		" " + good,
		strings.Repeat("A", 40), "EAEA", "EQEA", "IAEA", "IQEA",
		string(testCursors.Append(nil, 2, 2, []Position{{1, 1, 1}})),
		string(testCursors.Append(nil, maxPartitions+1, 0, []Position{{1, 1, 1}})), cut,
	} {
		for _, partitions := range []int{2, 3} {
			if c, err := testCursors.Parse(text, partitions); !errors.Is(err, ErrMalformed) {
				t.Errorf("Parse(%q): got %v, %v, want ErrMalformed", text, c, err)
			}
		}
	}
	for i := range good { // one character wrong
		for _, other := range "AZ9_" {
			if text := good[:i] + string(other) + good[i+1:]; text != good {
				if _, err := testCursors.Parse(text, 2); err == nil {
					t.Errorf("Parse(%q): got no error, differs from %q", text, good)
				}
			}
		}
	}
	for _, partitions := range []int{1, 4} {
		if _, err := testCursors.Parse(good, partitions); !errors.Is(err, ErrOtherLog) {
			t.Errorf("cursor of 2 partitions for %d partitions: got %v, want ErrOtherLog", partitions, err)
		}
	}
}

// Clients keep cursors over upgrades, so the hash must never change.
func TestHashID_IsStable(t *testing.T) {
	for id, want := range map[string]uint16{
		"": 0x811c ^ 0x9dc5, "a": 0xe40c ^ 0x292c, "5f2b6c1e9d0a4b7c8e3f1a2d": 31494,
	} {
		if got := HashID(id); got != want {
			t.Errorf("HashID(%q): got %d, want %d", id, got, want)
		}
	}
}

func TestPosition_ParseAndPredecessor(t *testing.T) {
	for _, id := range []string{"", "1", "-", "1-", "-1", "a-1", "1-a", "1-2-3", "18446744073709551616-0"} {
		if p, ok := ParsePosition(id); ok {
			t.Errorf("ParsePosition(%q): got %v, want an error", id, p)
		}
	}
	for _, tt := range []struct{ id, want string }{
		{"5-3", "5-2"}, {"5-0", "4-18446744073709551615"}, {"0-1", "0-0"}, {"0-0", "0-0"},
	} {
		p, ok := ParsePosition(tt.id)
		if got := p.Predecessor(); !ok || p.String() != tt.id || got.String() != tt.want || got.Compare(p) > 0 {
			t.Errorf("predecessor of %s: got %s, want %s", tt.id, got, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("", 1)
	f.Add(string(testCursors.Append(nil, 1, 0, []Position{{1_795_000_000_000, 1, 1}})), 1)
	f.Add(string(testCursors.Append(nil, 3, 1, []Position{{5, math.MaxUint64, 0}})), 3)
	f.Add(string(testCursors.Append(nil, 3, 0, []Position{{}, {5, 6, 7}, {7, 0, 0}})), 3)
	f.Fuzz(func(t *testing.T, text string, partitions int) {
		c, err := testCursors.Parse(text, partitions)
		if err != nil {
			return
		}
		again, err := testCursors.Parse(string(testCursors.Append(nil, partitions, c.first, c.list)), partitions)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(c) {
			t.Errorf("round trip: got %v, %v, want %v", again, err, c)
		}
	})
}

func Example() {
	cursors := NewCursors(CursorKey{})
	text := cursors.Append(nil, 1, 0, []Position{{1_795_000_000_000, 4, 5}})
	c, err := cursors.Parse(string(text), 1)
	at, _ := c.At(0)
	fmt.Println(string(text), at, err)
	// Output: MH66lQbglS_tTpFoUJ0ORRhnEYu7-5IARFOC 1795000000000-4 <nil>
}

func BenchmarkAppend(b *testing.B) {
	var text []byte
	list := []Position{{1_795_000_000_000, 4, 5}}
	b.ReportAllocs()
	for b.Loop() {
		text = testCursors.Append(text[:0], 1, 0, list)
	}
}
