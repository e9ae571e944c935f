package clients

import (
	"bufio"
	"bytes"
	"compress/flate"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

// allCompressed compresses every message that gets shorter, with more processor time than a test can use. Each second
// of it adds a compressor of more than a megabyte.
var allCompressed = Compression{Enabled: true, MinSize: 1, CPU: 8 * time.Second}

// inflate decompresses a message like a client.
func inflate(t testing.TB, payload []byte) []byte {
	t.Helper()
	data, err := io.ReadAll(flate.NewReader(io.MultiReader(bytes.NewReader(payload), strings.NewReader(deflateTail))))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) { // there is no last block
		t.Fatal(err)
	}
	return data
}

// readFrame reads one frame from the server.
func readFrame(t testing.TB, in io.Reader) (first byte, payload []byte) {
	t.Helper()
	header := make([]byte, 10)
	if _, err := io.ReadFull(in, header[:2]); err != nil {
		t.Fatal(err)
	}
	size := int(header[1])
	switch header[1] {
	case 126:
		_, _ = io.ReadFull(in, header[2:4])
		size = int(binary.BigEndian.Uint16(header[2:]))
	case 127:
		_, _ = io.ReadFull(in, header[2:10])
		size = int(binary.BigEndian.Uint64(header[2:]))
	}
	payload = make([]byte, size)
	if _, err := io.ReadFull(in, payload); err != nil {
		t.Fatal(err)
	}
	return header[0], payload
}

// speak opens a websocket that offers compression, and returns what the server sends.
func speak(t *testing.T, n *node, query string) *bufio.Reader {
	t.Helper()
	text := strings.Replace(handshake, "?hub=h", "?"+query, 1)
	_, in, answer := talk(
		t,
		n,
		strings.Replace(
			text,
			"Host: x",
			"Host: x\r\nSec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
			1,
		),
	)
	if answer.Header.Get(extensionHeader) != deflateResponse {
		t.Fatalf("the answer is %v", answer.Header)
	}
	return in
}

// Clients with compression receive the same bytes as others: live and in replays from memory and from the log, with
// and without cursors and filters, for messages of all kinds.
func TestCompression_KeepsMessages(t *testing.T) {
	t.Parallel()
	for name, start := range plainAndTLS {
		for _, partitions := range []int{1, 2} {
			for _, most := range []int{0, 1} {
				t.Run(fmt.Sprintf("%s, %d partitions, history %d", name, partitions, most), func(t *testing.T) {
					t.Parallel()
					testSame(
						t,
						startRelayedOver(
							t,
							redistest.Start(t),
							partitions,
							Options{Compression: allCompressed, HistoryBytes: most},
							start,
						),
					)
				})
			}
		}
	}
}

func testSame(t *testing.T, r *relayed) {
	t.Helper()
	hub := hubsInEach(r)[0]
	queries := []string{
		"account=a&hub=" + hub,
		"account=a&cursor=true&hub=" + hub,
		"account=a",
		"account=a&cursor=true&topics=job.*,!*.error",
	}
	pairs := make([][2]*websocket.Conn, len(queries))
	for i, query := range queries {
		pairs[i] = r.pair(t, query)
	}
	begin := r.dial(t, "account=a&after=now&hub="+hub)
	from := next(t, begin).Cursor
	count := r.publishOdd(t, hub)
	for i, pair := range pairs {
		wantSame(t, queries[i], pair, count)
	}
	r.settled(t)
	wantSame(t, "come back", r.pair(t, "account=a&hub="+hub+"&after="+from), count)
	if r.deflated("frames") == 0 || r.deflated("saved") <= 0 || r.deflated("not made") != 0 {
		t.Errorf("the counts are %v", r.counts.deflate)
	}
}

// pair connects one client that understands compressed messages and one that does not.
func (r *relayed) pair(t *testing.T, query string) [2]*websocket.Conn {
	t.Helper()
	with := r.dial(t, query)
	d := r.dialer()
	d.EnableCompression = false
	without, answer, err := d.Dial(r.url(query), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	t.Cleanup(func() { _ = without.Close() })
	return [2]*websocket.Conn{with, without}
}

func wantSame(t *testing.T, what string, pair [2]*websocket.Conn, count int) {
	t.Helper()
	for i := range count {
		got, want := next(t, pair[0]), next(t, pair[1])
		if got.text != want.text || got.N != i+1 {
			t.Fatalf("%s: message %d is %.300s, want %.300s", what, i+1, got.text, want.text)
		}
	}
}

// publishOdd publishes notifications of many sizes and kinds in one batch, and returns how many.
func (r *relayed) publishOdd(t *testing.T, hub string) int {
	t.Helper()
	noise := make([]byte, 30_000)
	_, _ = rand.Read(noise)
	pads := []string{
		"",
		"x",
		strings.Repeat("x", 100),
		strings.Repeat("ü☃", 500),
		strings.Repeat(`{"a":1},`, 20_000),
		hex.EncodeToString(noise),
		"last",
	}
	var list []relay.Notification
	for i, pad := range pads {
		data := fmt.Appendf(nil, `{"topic":"job.created","n":%d,"hub":%q,"pad":%q}`, i+1, hub, pad)
		list = append(
			list,
			relay.Notification{
				ID:      fmt.Sprintf("%024x", r.id.Add(1)),
				Hub:     hub,
				Account: "a",
				Topic:   "job.created",
				Data:    data,
			},
		)
	}
	if _, err := r.log.Append(t.Context(), eventlog.AppendRequest{Hub: hub, Notifications: list}); err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// A message is compressed once per encoding, when the first client needs it, and never for clients without
// compression.
func TestCompression_OncePerEncoding(t *testing.T) {
	t.Parallel()
	const clients, messages = 10, 20
	n := startNode(t, Options{Compression: Compression{Enabled: true, CPU: allCompressed.CPU}}, nil)
	plain, _, _ := talk(t, n, strings.Replace(handshake, "?hub=h", "?hub=h&account=a", 1))
	from := bufio.NewReader(plain)
	one := sized("h", "a", "job.created", 1, 1000)
	n.Broadcast([]relay.Notification{one})
	if first, payload := readFrame(t, from); first != finText || !bytes.Equal(payload, one.Data) ||
		n.deflated("made") != 0 {
		t.Fatalf("%x, %v", first, n.counts.deflate)
	}
	var all []*bufio.Reader
	for range clients {
		all = append(all, speak(t, n, "hub=h&account=a"), speak(t, n, "hub=h&account=a&cursor=true"))
	}
	saved := 0
	for i := range messages {
		pad := 1000
		if i%2 == 0 {
			pad = 100 // short
		}
		one := sized("h", "a", "job.created", i, pad)
		n.Broadcast([]relay.Notification{one})
		if first, payload := readFrame(t, from); first != finText || !bytes.Equal(payload, one.Data) {
			t.Fatalf("a client that understands no compression got %x %q", first, payload)
		}
		for k, in := range all {
			first, payload := readFrame(t, in)
			want := byte(finText)
			if pad == 1000 {
				want = finText | rsv1
				short := payload
				payload = inflate(t, payload)
				saved += headerSize(len(payload)) + len(payload) - headerSize(len(short)) - len(short)
			}
			if first != want || k%2 == 0 && !bytes.Equal(payload, one.Data) ||
				!bytes.HasPrefix(payload, one.Data[:len(one.Data)-1]) {
				t.Fatalf("message %d of client %d: %x %q", i, k, first, payload)
			}
		}
	}
	got := fmt.Sprint(n.deflated("made"), n.deflated("frames"), n.deflated("saved"), n.deflated("not made"))
	if want := fmt.Sprint(messages/2*2, messages/2*2*clients, saved, 0); got != want {
		t.Errorf("the counts are %s, want %s", got, want)
	}
}

// Replays compress in small chunks, and later replays share the frames.
func TestReplay_SharesCompressedFrames(t *testing.T) {
	t.Parallel()
	const count = 3 * replayChunkCompressions
	redis := redistest.Start(t)
	for name, most := range map[string]int{"kept": 0, "read": 1} {
		t.Run(name, func(t *testing.T) {
			r := startRelayed(t, redis, 1, Options{Compression: allCompressed, HistoryBytes: most})
			from := next(t, r.dial(t, "account=a&hub=elsewhere&after=now")).Cursor
			hub := "h-" + name
			r.publish(t, hub, 1, count, 400)
			r.settled(t)
			for round := range 3 {
				expect(t, r.dial(t, "account=a&hub="+hub+"&after="+from), 1, count)
				testkit.WaitForValue(
					t,
					"all frames are counted",
					(round+1)*count, func() int { return r.deflated("frames") },
				)
			}
			if made := r.deflated("made"); name == "kept" && made != count || made < count {
				t.Errorf("%d were compressed for three replays of %d", made, count)
			}
		})
	}
}

// The compressions of a chunk are limited by size, too, because broadcasts wait for the feed.
func TestReplay_LimitsCompressions(t *testing.T) {
	t.Parallel()
	for padding, most := range map[int]int{
		300: replayChunkCompressions, 1900: replayChunkCompressions / 2, 20_000: 4, 300_000: 1,
	} {
		observer := newCounter()
		h := New(Options{Compression: allCompressed, Observer: observer, HistoryBytes: 100 << 20})
		h.SetPosition(0, streamid.Position{MS: 1})
		var list []relay.Notification
		for i := range 2 * replayChunkCompressions {
			n := sized("h", "", "job.created", i, padding)
			n.Cursor = streamid.Position{MS: 2, Seq: uint64(i)}.String()
			list = append(list, n)
		}
		h.Broadcast(Batch{Notifications: list})
		c := &connection{server: h, format: frame.WithCursor | frame.Deflated, feed: h.feeds[0]}
		r, problem := h.newReplay(t.Context(), c, &Subscription{
			Hub: "h", Allows: func(string, string) bool { return true },
			After: string(testCursors.Append(nil, 1, 0, []streamid.Position{{MS: 1}})),
		})
		if problem != nil {
			t.Fatal(problem)
		}
		r.feed.mu.Lock()
		r.position = r.feed.locate(r.positions)
		r.chunkFromFeed()
		r.feed.mu.Unlock()
		if made := observer.deflated("made"); made != most {
			t.Errorf("%d messages of %d bytes were compressed in one go, want %d", made, padding, most)
		}
	}
}
