package resp

import (
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A large reply may need longer than the read timeout. It must not be interrupted while data arrives, because it
// would be as large the next time.
func TestReadStreams_SlowReply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		var writer sync.WaitGroup
		defer writer.Wait()
		defer func() { _ = client.Close() }()
		c := NewConn(client)
		c.readTimeout = 50 * time.Millisecond
		const pieces = 20
		writer.Go(func() {
			defer func() { _ = server.Close() }()
			_, _ = server.Read(make([]byte, 4096))
			size := pieces * 100
			head := "*1\r\n*2\r\n$1\r\na\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nk\r\n$"
			_, _ = server.Write([]byte(head + strconv.Itoa(size) + "\r\n"))
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for range pieces {
				<-tick.C
				_, _ = server.Write([]byte(strings.Repeat("x", 100)))
			}
			_, _ = server.Write([]byte("\r\n"))
		})
		got := 0
		err := readGroup(c, -1, func(_ int, entries []Entry) {
			got += len(entries)
		})
		if err != nil || got != 1 {
			t.Errorf("got %d entries, %v, want one", got, err)
		}
	})
}

func TestReadStreams_TimesOutWithoutData(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer func() { _, _ = client.Close(), server.Close() }()
		go func() { _, _ = server.Read(make([]byte, 4096)) }()
		c := NewConn(client)
		c.readTimeout = 20 * time.Millisecond
		err := readGroup(c, 10*time.Millisecond, func(int, []Entry) {})
		if err == nil {
			t.Error("got no error, want a timeout")
		}
	})
}

// readGroup runs XREADGROUP for the new entries of stream a.
func readGroup(c *Conn, block time.Duration, each func(i int, entries []Entry)) error {
	read := GroupRead{Group: "g", Consumer: "c", Count: 1, Block: block}
	err := c.SendGroupRead(read, 1, func(int) (name, after string) { return "a", ">" })
	if err != nil {
		return err
	}
	return c.ReadStreams(1, func(int) string { return "a" }, func(int) int { return math.MaxInt },
		func(i int, entries []Entry, _ bool) { each(i, entries) })
}
