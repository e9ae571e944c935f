package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestClient_CountFramesInPieces(t *testing.T) {
	var stream []byte
	stream = append(stream, 0x81, 3, 'a', 'b', 'c')                                            // short
	stream = append(stream, textFrame(300)...)                                                 // 16-bit length
	stream = append(stream, 0xc1, 2, 'd', 'e')                                                 // compressed
	stream = append(stream, 0x89, 0)                                                           // a ping
	stream = append(append(stream, 0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0), make([]byte, 1<<16)...) // 64-bit length
	for _, size := range []int{1, 2, 7, 1000, len(stream)} {
		c := client{header: make([]byte, 0, 10)}
		for piece := range slices.Chunk(stream, size) {
			if err := c.countFrames(piece); err != nil {
				t.Fatal(err)
			}
		}
		if c.frames != 4 || c.bytes != 5+300+4+10+1<<16 || c.pings != 1 {
			t.Errorf("in pieces of %d: got %d frames of %d bytes, %d pings", size, c.frames, c.bytes, c.pings)
		}
	}
	if err := (&client{}).countFrames([]byte{0x88, 0}); err == nil {
		t.Error("close frame: got no error")
	}
}

func TestHTTPConn_PostReadsCompleteResponses(t *testing.T) {
	answers := []string{
		"HTTP/1.1 202 Accepted\r\nContent-Length: 5\r\n\r\nabcde",
		"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
	}
	ours, theirs := net.Pipe()
	defer func() { _ = ours.Close() }()
	go func() {
		defer func() { _ = theirs.Close() }()
		in := make([]byte, 4)
		for _, a := range append(answers, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno") {
			if _, err := theirs.Read(in); err != nil {
				return
			}
			_, _ = theirs.Write([]byte(a))
		}
	}()
	c := &httpConn{conn: ours, in: bufio.NewReader(ours)}
	for _, a := range answers {
		if err := c.postRequest([]byte("POST")); err != nil {
			t.Errorf("%q: %v", a, err)
		}
	}
	if err := c.postRequest([]byte("POST")); err == nil {
		t.Error("status 503: got no error")
	}
}

func TestCheckBars(t *testing.T) {
	good := newRow("good", 12, "x", "floor", 6).ratioAtLeast(2)
	bad := newRow("bad", 59_999, "x", "floor", 1).atLeast(60_000)
	var out bytes.Buffer
	printTable(&out, []row{good, bad})
	if !bytes.Contains(out.Bytes(), []byte("59,999 x")) || !bytes.Contains(out.Bytes(), []byte("2.00")) {
		t.Errorf("got table\n%s", out.String())
	}
	if err := checkBars([]row{good}); err != nil {
		t.Error(err)
	}
	if err := checkBars([]row{newRow("compared", 5, "x", "floor", 1).forComparison()}); err != nil {
		t.Error(err)
	}
	if err := checkBars([]row{good, bad}); err == nil || err.Error() != "missed the bar: bad" {
		t.Errorf("got %v", err)
	}
}

func TestWriteResults(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results")
	rows := []row{
		newRow("good & quick", 12, "x", "floor", 6).ratioAtLeast(2),
		newRow("bad", 59_999, "x", "floor", 1).atLeast(60_000),
		newRow("nothing", 0, "x", "floor", 1).atMost(1),
	}
	if err := writeResults(dir, rows); err != nil {
		t.Fatal(err)
	}
	plot, err := os.ReadFile(filepath.Join(dir, "plot.svg"))
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(plot, new(struct{})); err != nil {
		t.Errorf("the plot is not XML: %v\n%s", err, plot)
	}
	if n := bytes.Count(plot, []byte("<circle")); n != len(rows) || bytes.Contains(plot, []byte("NaN")) ||
		bytes.Contains(plot, []byte("Inf")) {
		t.Errorf("got a plot of %d of %d rows:\n%s", n, len(rows), plot)
	}
	table, err := os.ReadFile(filepath.Join(dir, "table.txt"))
	if err != nil || !bytes.Contains(table, []byte("59,999 x")) {
		t.Errorf("got table\n%s (%v)", table, err)
	}
}

func TestStampFrame(t *testing.T) {
	due := time.Now()
	frame := textFrame(100)
	stampFrame(frame, due)
	var late []time.Duration
	c := client{header: make([]byte, 0, 10), lateness: &late}
	if err := c.countFrames(append(frame, textFrame(100)...)); err != nil {
		t.Fatal(err)
	}
	if len(late) != 1 || late[0] < 0 || late[0] > time.Since(due) {
		t.Errorf("got latencies %v, due at %v", late, due)
	}
}

// TestWatchers expects that all watchers see all clients until the server closes the connections.
func TestWatchers(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	const each = 3
	var watchers []*watcher
	var servers []net.Conn
	ended := make(chan error, 2)
	for range 2 {
		var clients []*client
		for range each {
			c, err := connect(listener.Addr().String(), connectOptions{plain: true})
			if err != nil {
				t.Fatal(err)
			}
			server, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			clients, servers = append(clients, c), append(servers, server)
		}
		w, err := newWatcher(clients)
		if err != nil {
			t.Fatal(err)
		}
		watchers = append(watchers, w)
		go func() { ended <- w.watchSockets() }()
	}
	frame := textFrame(100)
	stampFrame(frame, time.Now())
	for _, server := range servers {
		if _, err := server.Write(frame); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range watchers {
		err := waitUntil(t.Context(), time.Minute, func() error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.lateness) < each {
				return fmt.Errorf("got %d of %d frames", len(w.lateness), each)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if late := takeP99(watchers); late <= 0 || takeP99(watchers) != 0 {
		t.Errorf("got %s, and %s without new frames", late, takeP99(watchers))
	}
	for _, server := range servers {
		_ = server.Close()
	}
	for range watchers {
		if err := <-ended; !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
	}
}

func TestReceiver_SplitAndCountRequests(t *testing.T) {
	r := &receiver{}
	published := time.Now().Add(-time.Second)
	request := newStampedRequest(published)
	for n := range request {
		if _, _, ok := splitRequest(request[:n]); ok {
			t.Fatalf("%d of %d bytes were accepted as a request", n, len(request))
		}
	}
	head, body, ok := splitRequest(request)
	if !ok || !json.Valid(body) {
		t.Fatalf("got %v: %s", ok, body)
	}
	r.countRequest(head, body, published.Add(time.Second))
	r.countRequest([]byte("POST / HTTP/1.1\r\nwebhook-signature: v1,x"), []byte(event), published.Add(3*time.Second))
	if r.count != 2 || r.signed != 1 || r.last.Sub(r.first) != 2*time.Second || len(r.latencies) != 1 ||
		r.latencies[0] != time.Second {
		t.Errorf("got %+v", r)
	}
	for n, want := range map[int]time.Duration{0: 0, 1: 1, 100: 99, 1000: 990} {
		var values []time.Duration
		for i := range n {
			values = append(values, time.Duration(n-i))
		}
		if got := percentile(values, 99); got != want {
			t.Errorf("99th percentile of %d: got %d, want %d", n, got, want)
		}
	}
}
