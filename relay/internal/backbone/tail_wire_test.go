package backbone

import (
	"bufio"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func TestWireFollowsALog(t *testing.T) {
	t.Parallel()
	bulk := func(s ...string) string {
		var b strings.Builder
		for _, one := range s {
			w := &respConn{}
			w.appendArg(one)
			b.Write(w.writeBuf)
		}
		return b.String()
	}
	answer := func(fields ...string) string {
		w := &respConn{}
		w.beginCommand(len(fields))
		return "*1\r\n*2\r\n" + bulk("log") + "*1\r\n*2\r\n" + bulk("7-1") + string(w.writeBuf) + bulk(fields...)
	}
	for name, c := range map[string]struct {
		in, err string
		want    relay.Notification
	}{
		"ours": {
			in:   answer("id", "1", "topic", "job.created", "hub", "h", "account", "a", "data", "{}"),
			want: relay.Notification{Cursor: "7-1", ID: "1", Topic: "job.created", Hub: "h", Account: "a", Data: []byte("{}")},
		},
		"in another order, with others": {
			in:   answer("data", "{}", "colour", "red", "hub", "h", "id", "1"),
			want: relay.Notification{Cursor: "7-1", ID: "1", Hub: "h", Data: []byte("{}")},
		},
		"nothing in it":  {in: answer(), want: relay.Notification{Cursor: "7-1"}},
		"another stream": {in: strings.Replace(answer("id", "1"), "log", "lag", 1), err: "was asked for"},
		"refused":        {in: "-MOVED 1 127.0.0.1:1\r\n", err: "MOVED"},
		"cut off":        {in: strings.TrimSuffix(answer("id", "1"), "1\r\n"), err: "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &respConn{reader: bufio.NewReaderSize(strings.NewReader(c.in), 64)}
			entries, _, err := w.parseStreamReply("log")
			list := notificationsOf(entries)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, %v", list, err)
				}
				return
			}
			if err != nil || len(list) != 1 {
				t.Fatalf("%v, %v", list, err)
			}
			got := list[0]
			if string(got.Data) != string(c.want.Data) {
				t.Errorf("the data is %q", got.Data)
			}
			got.Data, c.want.Data = nil, nil
			if got.Cursor != c.want.Cursor || got.ID != c.want.ID || got.Topic != c.want.Topic || got.Hub != c.want.Hub || got.Account != c.want.Account {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// A server that was replaced may live on behind a split network, and the connection to it too: nobody writes there any more.
func TestTailLeavesAServerThatWasReplaced(t *testing.T) {
	t.Parallel()
	b, primary, replica, target := openPair(t)
	r := follow(t, b, zeroID)
	mustAppend(t, b, notes("h", 1, 10)...)
	testkit.WaitFor(t, "the first seen", func() bool { n, _ := r.count(); return n == 10 })
	promoted, old := replica.Client(), primary.Client()
	testkit.WaitFor(t, "the first replicated", func() bool { return promoted.XLen(t.Context(), b.keys.Log(0)).Val() == 10 })
	if err := promoted.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	target.Store(replica)
	if err := promoted.Do(t.Context(), addArgs(b.keys.Log(0), new(note("h", 11)))...).Err(); err != nil {
		t.Fatal(err)
	}
	// Every connection ends but the tail's.
	for line := range strings.Lines(old.ClientList(t.Context()).Val()) {
		if strings.Contains(line, " cmd=xread ") {
			continue
		}
		id, _, _ := strings.Cut(strings.TrimPrefix(line, "id="), " ")
		_ = old.ClientKillByFilter(t.Context(), "ID", id).Err()
	}
	testkit.WaitFor(t, "what its successor has stored seen", func() bool { n, _ := r.count(); return n == 11 })
	r.check(t, 1, 11, 0)
}
