package eventlog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

// array returns a RESP array of strings.
func array(fields ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(fields))
	for _, f := range fields {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(f), f)
	}
	return b.String()
}

func TestToNotification(t *testing.T) {
	t.Parallel()
	entry := func(fields ...string) string { return "*1\r\n*2\r\n$3\r\n7-1\r\n" + array(fields...) }
	for name, c := range map[string]struct {
		reply, err string
		want       relay.Notification
	}{
		"fields of the relay": {
			reply: entry("id", "1", "topic", "job.created", "hub", "h", "account", "a", "data", "{}"),
			want: relay.Notification{
				Cursor: "7-1", ID: "1", Topic: "job.created", Hub: "h", Account: "a", Data: []byte("{}"),
			},
		},
		"another order and unknown fields": {
			reply: entry("data", "{}", "color", "red", "hub", "h", "id", "1"),
			want:  relay.Notification{Cursor: "7-1", ID: "1", Hub: "h", Data: []byte("{}")},
		},
		"no fields": {reply: entry(), want: relay.Notification{Cursor: "7-1"}},
		"error":     {reply: "-MOVED 1 127.0.0.1:1\r\n", err: "MOVED"},
		"truncated": {reply: strings.TrimSuffix(entry("id", "1"), "1\r\n"), err: "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			entries, _, err := resp.NewDecoder(strings.NewReader(c.reply), 64).ReadEntries(maxReplyBytes)
			list := ToNotifications(entries)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, %v, want error %q", list, err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]relay.Notification{c.want}, list, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzToNotification(f *testing.F) {
	f.Add([]byte("\x02id\x011"))
	f.Fuzz(func(t *testing.T, body []byte) {
		n := toNotification(resp.Entry{ID: "1-1", Body: body})
		if size := len(n.ID) + len(n.Topic) + len(n.Hub) + len(n.Account) + len(n.Data); size > len(body) {
			t.Errorf("decoded %d bytes from %d", size, len(body))
		}
	})
}

// A replaced server may stay reachable over an old connection, but it receives no more writes.
func TestTail_LeavesReplacedServer(t *testing.T) {
	t.Parallel()
	b, primary, replica, target := openPair(t)
	r := follow(t, b, streamid.Zero)
	mustAppend(t, b, notifications("h", 1, 10)...)
	testkit.WaitForValue(t, "the first entries", 10, func() int { n, _ := r.count(); return n })
	promoted, old := replica.Client(), primary.Client()
	testkit.WaitForValue(t, "replication", 10, func() int64 {
		return promoted.XLen(t.Context(), Key(b.Keys(), 0)).Val()
	})
	if err := promoted.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	target.Store(replica)
	args := addArgs(Key(b.Keys(), 0), new(notification("h", 11)), "")
	if err := promoted.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	// Kill all connections except the reader's.
	for line := range strings.Lines(old.ClientList(t.Context()).Val()) {
		if strings.Contains(line, " cmd=xread ") {
			continue
		}
		id, _, _ := strings.Cut(strings.TrimPrefix(line, "id="), " ")
		_ = old.ClientKillByFilter(t.Context(), "ID", id).Err()
	}
	testkit.WaitForValue(t, "the entry on the new server", 11, func() int { n, _ := r.count(); return n })
	r.check(t, 1, 11, 0)
}
