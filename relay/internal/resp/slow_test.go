package resp

import (
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A long answer over a slow line takes longer than any single answer may keep silent: while it goes on it must not be
// cut off, since it would be as long the next time, and for ever.
func TestWireWaitsForAnAnswerThatGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		var far sync.WaitGroup
		defer far.Wait()
		defer func() { _ = ours.Close() }()
		w := NewConn(ours)
		w.readTimeout = 50 * time.Millisecond
		const pieces = 20
		far.Go(func() {
			defer func() { _ = theirs.Close() }()
			_, _ = theirs.Read(make([]byte, 4096))
			size := pieces * 100
			_, _ = theirs.Write([]byte("*1\r\n*2\r\n$1\r\na\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nk\r\n$" + strconv.Itoa(size) + "\r\n"))
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for range pieces {
				<-tick.C
				_, _ = theirs.Write([]byte(strings.Repeat("x", 100)))
			}
			_, _ = theirs.Write([]byte("\r\n"))
		})
		got := 0
		err := readGroup(w, -1, func(_ int, entries []Entry) {
			got += len(entries)
		})
		if err != nil || got != 1 {
			t.Errorf("read %d entries, %v", got, err)
		}
	})
}

func TestWireGivesUpOnSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer func() { _, _ = ours.Close(), theirs.Close() }()
		go func() { _, _ = theirs.Read(make([]byte, 4096)) }()
		w := NewConn(ours)
		w.readTimeout = 20 * time.Millisecond
		err := readGroup(w, 10*time.Millisecond, func(int, []Entry) {})
		if err == nil {
			t.Error("read something out of silence")
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
	return c.ReadStreams(1, func(int) string { return "a" }, each)
}
