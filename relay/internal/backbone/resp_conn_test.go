package backbone

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func readWire(in string, streams ...string) (string, error) {
	w := &respConn{reader: bufio.NewReaderSize(strings.NewReader(in), 16)}
	plan := make([]streamRead, len(streams))
	for i, s := range streams {
		plan[i].src = newStreamState(s, nil)
	}
	var b strings.Builder
	err := w.readStreams(plan, func(i int, entries []rawEntry) {
		for _, e := range entries {
			fmt.Fprintf(&b, "%s %s %v;", streams[i], e.id, e.toMap())
		}
	})
	return b.String(), err
}

func TestWireReadsStreams(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100_000)
	for _, c := range []struct{ name, in, want, err string }{
		{"nothing", "*-1\r\n", "", ""},
		{
			"two streams, one left out", "*2\r\n*2\r\n$1\r\na\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nk\r\n$0\r\n\r\n*2\r\n$1\r\nc\r\n*0\r\n",
			"a 1-0 map[k:];", "",
		},
		{"a pending id without entry", "*1\r\n*2\r\n$1\r\na\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*-1\r\n", "a 1-0 map[];", ""},
		{
			"more than the buffer holds", "*1\r\n*2\r\n$1\r\na\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nk\r\n$100000\r\n" + long + "\r\n",
			"a 1-0 map[k:" + long + "];", "",
		},
		{"an error", "-NOGROUP x\r\n", "", "NOGROUP"},
		{"a stream that was not asked for", "*1\r\n*2\r\n$1\r\nz\r\n*0\r\n", "", "not asked for"},
		{"cut off", "*1\r\n*2\r\n$1\r\na\r\n*1\r\n*2\r\n$3\r\n1-", "", "EOF"},
		{"no redis", "HTTP/1.1 400\r\n", "", "redis answered"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := readWire(c.in, "a", "b", "c")
			if c.err == "" && (err != nil || got != c.want) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %.100q, %v", got, err)
			}
		})
	}
}

func FuzzWire(f *testing.F) {
	f.Add([]byte("*1\r\n*2\r\n$1\r\na\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nk\r\n$1\r\nv\r\n"))
	f.Add([]byte("*-1\r\n"))
	f.Add([]byte("-LOADING\r\n"))
	f.Add([]byte("*1\r\n*2\r\n$1\r\na\r\n*99999999\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := readWire(string(in), "a", "b")
		if err == nil && len(got) > 64*len(in)+64 {
			t.Errorf("%d bytes out of %d", len(got), len(in))
		}
		// A body is our own, but a wrong one must not crash either.
		body := bytes.Clone(in)
		_ = isDecodable(body)
		_ = (&queueEntry{body: body}).buildMessage()
		_ = rawEntry{body: body}.toNotification()

		w := &respConn{reader: bufio.NewReaderSize(bytes.NewReader(in), 16)}
		entries, _, err := w.parseStreamReply("a")
		size := 0
		for _, n := range notificationsOf(entries) {
			size += len(n.Cursor) + len(n.Data)
		}
		if err == nil && size > len(in) {
			t.Errorf("%d bytes out of %d", size, len(in))
		}
	})
}
