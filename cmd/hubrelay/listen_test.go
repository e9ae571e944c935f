package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/hubrelay/hubrelay/relay/client"
)

// cuttable passes connections on to a daemon, until they are cut.
type cuttable struct {
	net.Listener
	to func() string

	mu    sync.Mutex
	conns []net.Conn
}

func newCuttable(t *testing.T, to func() string) *cuttable {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cuttable{Listener: listener, to: to}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { c.pass(near) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		c.cut()
		wg.Wait()
	})
	return c
}

func (c *cuttable) pass(near net.Conn) {
	defer func() { _ = near.Close() }()
	far, err := net.Dial("tcp", c.to())
	if err != nil {
		return
	}
	c.mu.Lock()
	c.conns = append(c.conns, near, far)
	c.mu.Unlock()
	go func() {
		_, _ = io.Copy(far, near)
		_ = far.Close()
	}()
	_, _ = io.Copy(near, far)
}

func (c *cuttable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// TestListenMissesNothing cuts the connection of a listener again and again while notifications come, and before: it yields each once
// and in order.
func TestListenMissesNothing(t *testing.T) {
	t.Parallel()
	d := serve(t, setup{redis: fmt.Sprintf("data_dir: %q", folder(t)+"/data")})
	way := newCuttable(t, func() string { return d.public })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const batches, each = 60, 50
	c := &client.Client{URL: "http://" + way.Addr().String(), Key: opsKey, Hub: "hub-1"}
	connected := make(chan struct{}, 1000)
	heard := make(chan string, batches*each+1)
	go func() {
		defer close(heard)
		o := client.ListenOptions{LeastPause: 1, MostPause: 1, Connected: func() { connected <- struct{}{} }}
		for n, err := range c.Listen(ctx, o) {
			var e struct{ Object struct{ ID string } }
			if err == nil {
				err = json.Unmarshal(n.Data, &e)
			}
			if err != nil {
				t.Error(err)
				return
			}
			heard <- e.Object.ID
		}
	}()
	<-connected
	way.cut() // before anything has come
	var want, got []string
	for i := range batches {
		ids, err := d.publishNumbered(ctx, i*each, each)
		if err != nil || len(ids) != each {
			t.Fatalf("batch %d: %v", i, err)
		}
		for n := range each {
			want = append(want, fmt.Sprint(i*each+n))
		}
		if i%3 == 0 {
			way.cut()
		}
	}
	for len(got) < len(want) {
		id, ok := <-heard
		if !ok {
			break
		}
		got = append(got, id)
	}
	cancel()
	for id := range heard {
		got = append(got, id)
	}
	if !slices.Equal(got, want) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		t.Errorf("%d came of %d; at %d came %q", len(got), len(want), at, got[at:min(at+5, len(got))])
	}
	if len(connected) < 5 {
		t.Errorf("it connected only %d times more", len(connected))
	}
}
