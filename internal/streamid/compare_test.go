package streamid

import "testing"

func TestCompare(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"1-0", "1-0", 0},
		{"2-0", "10-0", -1},
		{"1-10", "1-9", 1},
		{"5", "5-0", 0},
		{"x", "0-0", 0},
		{"18446744073709551615-1", "1-1", 1},
	} {
		if got := Compare(c.a, c.b); got != c.want {
			t.Errorf("Compare(%q, %q): got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func FuzzCompare(f *testing.F) {
	for _, s := range []string{"1-2", "", "-", "1", "18446744073709551616-0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := Compare(s, s); got != 0 {
			t.Errorf("Compare(%q, %q): got %d, want 0", s, s, got)
		}
	})
}
