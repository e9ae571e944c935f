package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// A stream that starts at a time begins with the notifications of that millisecond, in all partitions.
func TestListen_Since(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: fmt.Sprintf("data_dir: %q, partitions: 4", tempDir(t)+"/data")})
	publish := func(first int) {
		t.Helper()
		for i := range 4 { // hubs in several partitions
			d.Publish(t, fmt.Sprintf("hub-%d", i), "application/json",
				fmt.Sprintf(`{"topic":"container.created","object":{"id":"%d"},"context":{}}`, first+i), nil)
		}
	}
	publish(0)
	published := time.Now().UnixMilli()
	testkit.Eventually(t, "the next millisecond", func() error {
		if time.Now().UnixMilli() == published {
			return errors.New("it has not begun")
		}
		return nil
	})
	middle := time.Now()
	publish(4)
	receive := func(after string, count int) []int {
		t.Helper()
		c := &client.Client{URL: "http://" + d.Public, Key: opsKey}
		var got []int
		for n, err := range c.Listen(t.Context(), client.ListenOptions{After: after}) {
			var e struct{ Object struct{ ID string } }
			if err == nil {
				err = json.Unmarshal(n.Data, &e)
			}
			id, err2 := strconv.Atoi(e.Object.ID)
			if err = errors.Join(err, err2); err != nil {
				t.Fatalf("%s: %v", n.Data, err)
			}
			if got = append(got, id); len(got) == count {
				break
			}
		}
		slices.Sort(got)
		return got
	}
	if got := receive(middle.UTC().Format(time.RFC3339Nano), 4); !slices.Equal(got, []int{4, 5, 6, 7}) {
		t.Errorf("since the middle: got %v", got)
	}
	if got := receive("2020-01-01T00:00:00+02:00", 8); !slices.Equal(got, []int{0, 1, 2, 3, 4, 5, 6, 7}) {
		t.Errorf("since 2020: got %v", got)
	}

	p := start(t, []string{"HUBRELAY_KEY=" + opsKey}, "listen", "--url", "http://"+d.Public, "--since", "1h", "--json")
	testkit.Eventually(t, "eight lines of the command", func() error {
		if n := strings.Count(p.Out.String(), "container.created"); n != 8 {
			return fmt.Errorf("got %d", n)
		}
		return nil
	})
	for args, want := range map[string]string{
		"--since soon":             "neither an age",
		"--since 2h --after x":     "use either --since or --after",
		"--after 2h":               "for an age or a time use --since",
		"--url http://x --after x": "nor a time",
	} {
		args = strings.Replace(args, "http://x", "http://"+d.Public, 1)
		_, errOut, code := call(t, []string{"HUBRELAY_KEY=" + opsKey}, "", append([]string{"listen"}, strings.Fields(args)...)...)
		if code == 0 || !strings.Contains(errOut, want) {
			t.Errorf("listen %s: %d %s, want %s", args, code, errOut, want)
		}
	}
}
