package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/client"
)

// TestListen_ResumesWithoutLoss cuts the connection of a listener repeatedly. It yields each notification once and in
// order.
func TestListen_ResumesWithoutLoss(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: fmt.Sprintf("data_dir: %q", tempDir(t)+"/data")})
	way := testkit.StartProxy(t, func() string { return d.Public })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const batches, each = 60, 50
	c := &client.Client{URL: "http://" + way.Addr(), Key: opsKey, Hub: "hub-1"}
	connected := make(chan struct{}, 1000)
	heard := make(chan string, batches*each+1)
	go func() {
		defer close(heard)
		o := client.ListenOptions{MinBackoff: 1, MaxBackoff: 1, OnConnected: func() { connected <- struct{}{} }}
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
	way.Cut() // before the first notification
	var want, got []string
	again := 0
	for i := range batches {
		ids, err := d.publishNumbered(ctx, i*each, each)
		if err != nil || len(ids) != each {
			t.Fatalf("batch %d: %v", i, err)
		}
		for n := range each {
			want = append(want, fmt.Sprint(i*each+n))
		}
		if i%3 == 0 {
			way.Cut()
		}
		if i%12 == 0 { // even on a busy machine
			select {
			case <-connected:
				again++
			case <-time.After(patience):
				t.Fatal("it does not connect again")
			}
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
	if again += len(connected); again < 5 {
		t.Errorf("it connected only %d times more", again)
	}
}
