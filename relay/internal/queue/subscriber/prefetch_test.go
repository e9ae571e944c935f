package subscriber

import (
	"bufio"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

// While a reply arrives, Redis already works on the next read of a stream with a backlog. That read is not sent
// twice. If it returns nothing, no further read is prefetched.
func TestRead_PrefetchesBacklog(t *testing.T) {
	t.Parallel()
	client, server := net.Pipe()
	defer func() { _, _ = client.Close(), server.Close() }()
	if err := server.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"})
	defer func() { _ = c.Close() }()
	s, err := New(Config{Commands: c, Readers: c, Group: "g", Consumer: "c"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	r := newSlotReader(s)
	r.session.Store(&readSession{conn: resp.NewConn(client)})
	st := newStreamState("queue", newTopicQueue(s, "queue"))
	st.readFrom = newEntries
	st.reader.Store(r)
	r.streams, r.fullStreams = []*streamState{st}, []*streamState{st}

	failed := make(chan error, 1)
	go func() {
		err := r.read(readPlan{[]streamRead{{st, newEntries}}, readCount})
		if err == nil {
			err = r.read(r.prefetched)
		}
		failed <- err
	}()
	in := bufio.NewReader(server)
	expectRead(t, in)
	reply(t, server, "*")
	expectRead(t, in)
	reply(t, server, "-1\r\n")
	reply(t, server, "*-1\r\n")
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if len(r.prefetched.streams) > 0 {
		t.Error("got a prefetched read of a stream without a backlog")
	}
}

// expectRead reads one XREADGROUP, whose last argument is a position.
func expectRead(t *testing.T, in *bufio.Reader) {
	t.Helper()
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == ">\r\n" {
			return
		}
	}
}

func reply(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}
