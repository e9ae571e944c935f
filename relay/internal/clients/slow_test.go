package clients

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

// A client that never reads is closed as too slow; the others get everything, and at once.
func TestSlowClient_IsClosedWithoutDelayingOthers(t *testing.T) {
	t.Parallel()
	const messages = 3000
	n := startNode(t, Options{QueueBytes: 256 << 10, CloseTimeout: patience}, nil)
	slow, quick := n.dial(t, "hub=h"), n.dial(t, "hub=h")
	closed := false
	for i := range messages {
		n.Broadcast([]relay.Notification{sized("h", "", "job.created", i, 16_000)})
		if got := numbers(t, quick, 1); got[0] != i {
			t.Fatalf("the quick client got %d, want %d", got[0], i)
		}
		n.mu.Lock()
		for c := range n.connections {
			c.mu.Lock()
			closed = closed || c.state == stateClosing
			c.mu.Unlock()
		}
		n.mu.Unlock()
		if closed {
			break
		}
	}
	if !closed {
		t.Fatal("the slow client was not closed")
	}
	// The data in the socket buffers still arrives in order, then the reason.
	wantClose(t, slow, frame.CloseSlowConsumer, "slow")
	n.wantEnding(t, ClosedSlowConsumer)
	n.Broadcast([]relay.Notification{event("h", "", "job.created", messages)})
	if got := numbers(t, quick, 1); got[0] != messages {
		t.Errorf("the quick client got %d", got[0])
	}
}

// A client whose socket accepts nothing is given up after the write timeout, though its queue is not full.
func TestWriteTimeout(t *testing.T) {
	t.Parallel()
	for name, start := range plainAndTLS {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Options{QueueBytes: 64 << 20, WriteTimeout: time.Second, CloseTimeout: 30 * time.Millisecond}
			n := startNodeOver(t, o, nil, start)
			n.dial(t, "hub=h")
			fillSocket(n.Server)
			n.wantEnding(t, ClosedSlowConsumer)
			if err := n.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A TLS client that hangs holds at most the buffer of one write.
func TestBlockedWrite_HoldsOneBuffer(t *testing.T) {
	t.Parallel()
	n := startNodeOver(
		t,
		Options{QueueBytes: 64 << 20, WriteTimeout: time.Second},
		nil,
		(*httptest.Server).StartTLS,
	)
	n.buffers.New = func() any {
		t.Errorf("a buffer of %d bytes was taken", writeBufferBytes)
		return new(writeBuffer)
	}
	n.dial(t, "hub=h")
	fillSocket(n.Server)
	n.wantEnding(t, ClosedSlowConsumer)
}

// A client that catches up in time stays, and is written to directly again.
func TestCatchingUp(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{QueueBytes: 64 << 20, WriteTimeout: patience}, nil)
	conn := n.dial(t, "hub=h")
	for range 3 {
		fillSocket(n.Server)
		for i, got := range numbers(t, conn, fillMessages) {
			if got != i {
				t.Fatalf("got %d, want %d", got, i)
			}
		}
	}
	n.Broadcast([]relay.Notification{event("h", "", "job.created", 7)})
	if got := numbers(t, conn, 1); got[0] != 7 {
		t.Errorf("got %d", got[0])
	}
}

// A client that replies to pings stays, and another one is closed with a reason.
func TestPingAndPong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pingInterval, pongTimeout = 20 * time.Millisecond, 1500 * time.Millisecond
		observer, began := newCounter(), time.Now()
		h := New(Options{PingInterval: pingInterval, PongTimeout: pongTimeout, Observer: observer})
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = h.Run(ctx) }()
		defer stop()
		s := Subscription{Hub: "h", Allows: everything}
		answering, silent := serveOverPipe(t, h, s, false), serveOverPipe(t, h, s, false)
		answered := make(chan int, 1)
		go func() {
			pings, _ := hearPings(answering, "\x8a\x80\x00\x00\x00\x00")
			answered <- pings
		}()
		_ = silent.SetReadDeadline(began.Add(time.Minute))
		_, last := hearPings(silent, "")
		if closeCode(last) != frame.ClosePolicy || !bytes.Contains(last, []byte("ping")) {
			t.Errorf("the silent client was told %q", last)
		}
		if after := time.Since(began); after < pongTimeout || after > pongTimeout+2*pingInterval {
			t.Errorf("the silent client was sent away after %s", after)
		}
		_ = silent.Close()
		observer.wantEnding(t, ClosedPingTimeout)
		time.Sleep(time.Minute)
		if h.Clients() != 1 || len(observer.ended) != 0 {
			t.Error("the client that answers was closed")
		}
		_ = answering.Close()
		if pings := <-answered; pings < int(time.Minute/pingInterval) {
			t.Errorf("%d pings in a minute", pings)
		}
	})
}

// hearPings sends pong for each ping, until another frame comes or the connection ends.
func hearPings(conn net.Conn, pong string) (pings int, last []byte) {
	in := bufio.NewReader(conn)
	if _, err := http.ReadResponse(in, nil); err != nil {
		return 0, nil
	}
	for {
		head := make([]byte, 2)
		if _, err := io.ReadFull(in, head); err != nil {
			return pings, nil
		}
		if !bytes.Equal(head, frame.NewPing()) {
			rest := make([]byte, head[1])
			_, _ = io.ReadFull(in, rest)
			return pings, append(head, rest...)
		}
		if pings++; pong != "" {
			_, _ = io.WriteString(conn, pong)
		}
	}
}

// A clock that is set must not make clients silent, or let those stay who are.
func TestPongTimeout_UsesMonotonicClock(t *testing.T) {
	t.Parallel()
	h := New(Options{})
	c := &connection{server: h, fd: -1, writing: true}
	c.sendPing(time.Now())
	if at := time.Duration(c.pingSentAt.Load()); at <= 0 || at > time.Since(h.startedAt) {
		t.Errorf("the ping was sent %s after the server started", at)
	}
}

func TestPingOfTheClientIsAnswered(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{}, nil)
	conn := n.dial(t, "hub=h")
	var got string
	conn.SetPongHandler(func(s string) error {
		got = s
		n.Broadcast([]relay.Notification{event("h", "", "job.created", 1)})
		return nil
	})
	if err := conn.WriteControl(websocket.PingMessage, []byte("here"), time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	numbers(t, conn, 1)
	if got != "here" {
		t.Errorf("pong %q", got)
	}
}

// During a chunk a client may send pings. It is closed only if it sends too many.
func TestPongsDuringChunk(t *testing.T) {
	t.Parallel()
	h := New(Options{QueueBytes: 64 << 10, CloseTimeout: time.Hour})
	c := &connection{server: h, fd: -1, writing: true} // the writer is stuck
	c.enqueueReplay([][]byte{make([]byte, replayChunkBytes), make([]byte, 256<<10)})
	pong := append([]byte{finPong, maxControlPayload}, make([]byte, maxControlPayload)...)
	for range maxClientBytes / len(pong) {
		c.sendControl(pong)
	}
	if _, stays := c.isIdle(); !stays {
		t.Fatal("it was sent away for pongs that it is owed")
	}
	c.sendControl(pong)
	if c.closeReason != ClosedSlowConsumer {
		t.Errorf("it may ask for any number of pongs: %q", c.closeReason)
	}
}

func TestClientCloses(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{}, nil)
	conn := n.dial(t, "hub=h")
	message := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "bye")
	if err := conn.WriteControl(websocket.CloseMessage, message, time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	wantClose(t, conn, websocket.CloseNormalClosure, "")
	n.wantEnding(t, ClosedByClient)
	if n.Clients() != 0 && n.index.size() != 0 {
		t.Error("the client stays in the index")
	}
}

func TestClientVanishes(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{}, nil)
	conn := n.dial(t, "hub=h")
	tcp, _ := conn.NetConn().(*net.TCPConn)
	_ = tcp.SetLinger(0) // a reset
	_ = tcp.Close()
	for range 10 {
		n.Broadcast([]relay.Notification{event("h", "", "job.created", 1)})
	}
	n.wantEnding(t, ClosedByClient)
}

func TestMessagesAreIgnored(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{}, nil)
	conn := n.dial(t, "hub=h")
	for range 10 {
		if err := conn.WriteMessage(websocket.TextMessage, []byte("ping")); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	conn.SetPongHandler(func(string) error {
		n.Broadcast([]relay.Notification{event("h", "", "job.created", 1)})
		return nil
	})
	numbers(t, conn, 1)
}

// A client that talks without end is sent away, whatever kind of frame it sends.
func TestFloodIsClosed(t *testing.T) {
	t.Parallel()
	const mask = "\x00\x00\x00\x00"
	for name, sent := range map[string]string{
		"messages":        "\x81\x81" + mask + "x",
		"pings":           "\x89\x80" + mask,
		"pongs":           "\x8a\x80" + mask,
		"empty fragments": "\x00\x80" + mask,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := startNode(t, Options{}, nil)
			conn := n.dial(t, "hub=h")
			if name == "empty fragments" {
				_, _ = io.WriteString(conn.NetConn(), "\x01\x80"+mask)
			}
			go func() { // until the connection is cut
				flood := strings.Repeat(sent, 100)
				for {
					if _, err := io.WriteString(conn.NetConn(), flood); err != nil {
						return
					}
				}
			}()
			conn.SetPongHandler(func(string) error { return nil })
			wantClose(t, conn, frame.ClosePolicy, "too many messages")
			_ = conn.Close()
			n.wantEnding(t, ClosedProtocolError)
		})
	}
}
