package resp

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
)

// readStreams decodes a reply, with a buffer that is smaller than most replies.
func readStreams(reply string, streams ...string) (string, error) {
	c := &Conn{reader: bufio.NewReaderSize(strings.NewReader(reply), 16)}
	var b strings.Builder
	name := func(i int) string { return streams[i] }
	err := c.ReadStreams(len(streams), name, func(int) int { return 200_000 }, func(i int, entries []Entry, _ bool) {
		for _, e := range entries {
			fmt.Fprintf(&b, "%s %s %v;", streams[i], e.ID, e.ToMap())
		}
	})
	return b.String(), err
}

func TestReadStreams(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100_000)
	const first = "*1\r\n*2\r\n$1\r\na\r\n*1\r\n*2\r\n$3\r\n1-0\r\n" // of stream a, without its fields
	for _, c := range []struct{ name, reply, want, err string }{
		{"null", "*-1\r\n", "", ""},
		{
			"two of three streams",
			"*2\r\n*2\r\n$1\r\na\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nk\r\n$0\r\n\r\n*2\r\n$1\r\nc\r\n*0\r\n",
			"a 1-0 map[k:];", "",
		},
		{"pending ID without entry", first + "*-1\r\n", "a 1-0 map[];", ""},
		{
			"larger than the buffer", first + "*2\r\n$1\r\nk\r\n$100000\r\n" + long + "\r\n",
			"a 1-0 map[k:" + long + "];", "",
		},
		{"error", "-NOGROUP x\r\n", "", "NOGROUP"},
		{"unknown stream", "*1\r\n*2\r\n$1\r\nz\r\n*0\r\n", "", "not requested"},
		{"truncated", "*1\r\n*2\r\n$1\r\na\r\n*1\r\n*2\r\n$3\r\n1-", "", "EOF"},
		{"not Redis", "HTTP/1.1 400\r\n", "", "redis sent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := readStreams(c.reply, "a", "b", "c")
			if c.err == "" && (err != nil || got != c.want) {
				t.Errorf("got %.100q, %v, want %.100q", got, err, c.want)
			}
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %.100q, %v, want error %q", got, err, c.err)
			}
		})
	}
}

func TestParseStreamReply(t *testing.T) {
	t.Parallel()
	const reply = "*1\r\n*2\r\n$3\r\nlog\r\n*1\r\n*2\r\n$3\r\n7-1\r\n*2\r\n$2\r\nid\r\n$1\r\n1\r\n"
	for name, c := range map[string]struct{ reply, want, err string }{
		"entry":          {reply: reply, want: "7-1 map[id:1]"},
		"another stream": {reply: strings.Replace(reply, "log", "lag", 1), err: "want only"},
		"error":          {reply: "-MOVED 1 127.0.0.1:1\r\n", err: "MOVED"},
		"truncated":      {reply: strings.TrimSuffix(reply, "1\r\n"), err: "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			entries, _, err := NewDecoder(strings.NewReader(c.reply), 64).parseStreamReply("log", math.MaxInt)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, %v, want error %q", entries, err, c.err)
				}
				return
			}
			if err != nil || len(entries) != 1 {
				t.Fatalf("got %v, %v, want one entry", entries, err)
			}
			if got := fmt.Sprint(entries[0].ID, " ", entries[0].ToMap()); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func FuzzConn(f *testing.F) {
	f.Add([]byte("*1\r\n*2\r\n$1\r\na\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nk\r\n$1\r\nv\r\n"))
	f.Add([]byte("*-1\r\n"))
	f.Add([]byte("-LOADING\r\n"))
	f.Add([]byte("*1\r\n*2\r\n$1\r\na\r\n*99999999\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := readStreams(string(in), "a", "b")
		if err == nil && len(got) > 64*len(in)+64 {
			t.Errorf("decoded %d bytes from %d", len(got), len(in))
		}
		// A malformed body must not panic either.
		body := bytes.Clone(in)
		_ = Entry{Body: body}.ToMap()
		var arena StringArena
		arena.Grow(body)

		c := &Conn{reader: bufio.NewReaderSize(bytes.NewReader(in), 16)}
		entries, _, err := c.parseStreamReply("a", math.MaxInt)
		size := 0
		for _, e := range entries {
			size += len(e.ID)
			EachField(e.Body, func(key, value []byte) bool {
				size += len(key) + len(value)
				return true
			})
		}
		if err == nil && size > len(in) {
			t.Errorf("decoded %d bytes from %d", size, len(in))
		}
	})
}
