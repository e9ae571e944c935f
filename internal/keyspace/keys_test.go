package keyspace

import (
	"fmt"
	"testing"
)

func TestSlotTags_AreBalanced(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 7, 16, 100, 1000, MaxPartitions} {
		k, err := New("hubrelay", n, true)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for i, tag := range k.tags {
			if seen[tag] {
				t.Errorf("%d partitions: tag %s is used twice", n, tag)
			}
			seen[tag] = true
			slot := int(crc16(tag) % clusterSlots)
			if n > 1 && slot*n/clusterSlots != i {
				t.Errorf("%d partitions: tag %s of partition %d has slot %d", n, tag, i, slot)
			}
		}
	}
}

// The values are from the Redis Cluster specification and `CLUSTER KEYSLOT`.
func TestCRC16(t *testing.T) {
	t.Parallel()
	for tag, want := range map[string]uint16{"123456789": 0x31c3, "": 0} {
		if got := crc16(tag); got != want {
			t.Errorf("crc16(%q): got %#x, want %#x", tag, got, want)
		}
	}
}

func TestPartition_IsStableAndBalanced(t *testing.T) {
	t.Parallel()
	k, err := New("hubrelay", 16, false)
	if err != nil {
		t.Fatal(err)
	}
	// These values must never change, because a change would break the order of a hub.
	for hub, want := range map[string]int{"5f0c8a7e9d3b2a1c4e6f8a90": 8} {
		if got := k.Partition(hub); got != want {
			t.Errorf("Partition(%q): got %d, want %d", hub, got, want)
		}
	}
	counts := make([]int, 16)
	for i := range 16_000 {
		counts[k.Partition(fmt.Sprintf("5f0c8a7e9d3b2a1c%08x", i))]++
	}
	for p, n := range counts {
		if n < 800 || n > 1200 {
			t.Errorf("partition %d: got %d of 16000 hubs, want about 1000", p, n)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	single, _ := New("hubrelay", 1, false)
	cluster, _ := New("hubrelay", 1, true)
	for _, c := range []struct{ got, want string }{
		{single.InPartition("log", 0), "hubrelay:log:{0}"},
		{single.Global("inbox"), "hubrelay:inbox"},
		{single.InGroup("quarantine", ""), "hubrelay:quarantine"},
		{single.InPartitionSlot("job:7", 0), "hubrelay:job:7"},
		{cluster.InPartitionSlot("job:7", 0), "hubrelay:job:7:{0}"},
		{cluster.InPartition("log", 0), "hubrelay:log:{0}"},
		{cluster.InGroup("quarantine", ""), "hubrelay:{quarantine}"},
		{cluster.InGroup("quarantine", ":position"), "hubrelay:{quarantine}:position"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
}

func TestNewRejectsBadArguments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		prefix     string
		partitions int
	}{{"", 1}, {"a{b", 1}, {"a b", 1}, {"hubrelay", -1}, {"hubrelay", 1025}} {
		if _, err := New(c.prefix, c.partitions, false); err == nil {
			t.Errorf("New(%q, %d): got no error", c.prefix, c.partitions)
		}
	}
}

func ExampleSpace() {
	k, err := New("hubrelay", 1, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(k.InPartition("log", k.Partition("my-hub")))
	// Output: hubrelay:log:{0}
}
