package brokers

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// startFloodingServer starts a server that sends the beginning of a reply and then fill until the client closes the connection.
// It returns its address and the maximum number of bytes that a connection took.
func startFloodingServer(t *testing.T, begin, fill string) (address string, most *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	most = new(atomic.Int64)
	block := bytes.Repeat([]byte(fill), 64<<10/len(fill))
	flood := func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		n, err := conn.Write([]byte(begin))
		total := int64(n)
		for err == nil && total < 16*maxReplyBytes {
			n, err = conn.Write(block)
			total += int64(n)
		}
		for old := most.Load(); total > old; old = most.Load() {
			if most.CompareAndSwap(old, total) {
				break
			}
		}
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { flood(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait() // the sink, which is stopped before, closes its connections
	})
	return l.Addr().String(), most
}

// A broker that sends without end fills no memory. Libraries wait for the end of a line or packet.
//
// No other test runs in parallel: with the race detector, large buffers stop the whole process for seconds, so dials of others
// would time out. For the same reason, no packet is larger than 32 MiB, if its library allocates it at once.
func TestSink_LimitsReplies(t *testing.T) {
	for name, c := range map[string]struct {
		config      Config
		begin, fill string
	}{
		"redis line":     {Config{Broker: Redis}, "", "z"},
		"nats line":      {Config{Broker: NATS}, "", "z"},
		"mqtt packet":    {Config{Broker: MQTT}, "\x20\xff\xff\xff\x0f", "\x00"},
		"amqp frames":    {Config{Broker: AMQP}, "\x01\x00\x00\x7f\xff\xff\xff", "\x00"},
		"kafka response": {Config{Broker: Kafka}, "\x06\x40\x00\x00", "\x00"},
		"postgres error": {Config{Broker: Postgres, Database: "x", User: "x"}, "E\x3f\xff\xff\xff", "\x00"},
		"postgres flood": {Config{Broker: Postgres, Database: "x", User: "x"}, "", "N\x00\x00\x00\x05\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			address, most := startFloodingServer(t, c.begin, c.fill)
			c.config.Addresses = []string{address}
			s := startSink(t, c.config)
			// On a busy machine, the time for an attempt may pass before it has a connection.
			testkit.WaitFor(t, "the end of a connection", func() bool {
				err := s.Deliver(t.Context(), newDelivery(1))
				if outcome, _ := relay.Classify(err); err == nil || outcome != relay.OutcomeRetry {
					t.Errorf("got %v, want an error that is retried", err)
				}
				return most.Load() > 0
			})
			// The sockets have buffers, too.
			if got := most.Load(); got > 4*maxReplyBytes {
				t.Errorf("a connection took %d bytes", got)
			}
		})
	}
}

// An AMQP broker returns rejected messages, so it may send more after writes, but not without a limit.
func TestLimitedConn_Credit(t *testing.T) {
	t.Parallel()
	for written, want := range map[int]int{0: maxReplyBytes, 1 << 20: maxReplyBytes + 2<<20, maxCredit: maxCredit} {
		ours, theirs := net.Pipe()
		c, read := newLimitedConn(ours), 0
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		if _, err := c.Write(make([]byte, written)); err != nil {
			t.Fatal(err)
		}
		go func() {
			block := make([]byte, 1<<20)
			for {
				if _, err := theirs.Write(block); err != nil {
					return
				}
			}
		}()
		block := make([]byte, 1<<20)
		for {
			n, err := c.Read(block)
			if err != nil {
				break
			}
			read += n
		}
		_, _ = ours.Close(), theirs.Close()
		if read != want {
			t.Errorf("after %d written bytes: got %d bytes, want %d", written, read, want)
		}
	}
}
