package subscriber

import (
	"bufio"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

// While an answer is under way, Redis already has the next read of a stream with a backlog. That one is not sent again,
// and where it brings nothing none is asked ahead.
func TestBacklogIsAskedForAhead(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	if err := theirs.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
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
	r.session.Store(&readSession{conn: resp.NewConn(ours)})
	st := newStreamState("queue", newTopicQueue(s, "queue"))
	st.readFrom = newEntries
	st.reader.Store(r)
	r.streams, r.fullStreams = []*streamState{st}, []*streamState{st}

	failed := make(chan error, 1)
	go func() {
		err := r.read([]streamRead{{st, newEntries}})
		if err == nil {
			err = r.read(r.prefetched)
		}
		failed <- err
	}()
	in := bufio.NewReader(theirs)
	command(t, in)
	answer(t, theirs, "*")
	command(t, in)
	answer(t, theirs, "-1\r\n")
	answer(t, theirs, "*-1\r\n")
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if len(r.prefetched) > 0 {
		t.Error("asked ahead for a stream that had no more")
	}
}

// command reads one XREADGROUP, which ends with a position.
func command(t *testing.T, in *bufio.Reader) {
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

func answer(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}
