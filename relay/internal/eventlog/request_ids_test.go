package eventlog

import (
	"slices"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func TestDeriveID(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"6b079575000001387d13e119", "6b079575fffffffffffffff0", "000000000000000000000000"} {
		ids, random := []string{first}, make(map[string]bool)
		for i := 1; i < 10_000; i++ {
			id := DeriveID(first, i)
			if len(id) != 24 || id <= ids[i-1] || id[:8] != first[:8] && first[:16] != "6b079575ffffffff" {
				t.Fatalf("the ID after %s is %s", ids[i-1], id)
			}
			ids, random[id[16:]] = append(ids, id), true
		}
		if len(random) < 9_990 {
			t.Errorf("the random bits of 10,000 IDs have only %d values", len(random))
		}
		if text := encodeIDs(withIDs(ids)); len(text) > 30 || !slices.Equal(decodeIDs(text), ids) {
			t.Errorf("the IDs are encoded as %.60q", text)
		}
	}
	for _, list := range [][]string{{"a"}, {"a", "b"}, {"6b079575000001387d13e119", "6b07957500000138a0000000"}} {
		if got := decodeIDs(encodeIDs(withIDs(list))); !slices.Equal(got, list) {
			t.Errorf("got %q, want %q", got, list)
		}
	}
	if got := decodeIDs("6b079575000001387d13e119"); len(got) != 1 {
		t.Errorf("got %q", got)
	}
}

func withIDs(ids []string) (list []relay.Notification) {
	for _, id := range ids {
		list = append(list, relay.Notification{ID: id})
	}
	return list
}
