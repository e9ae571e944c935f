package clients

import (
	"bytes"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// A key expires at its latest time, without waiting for the next ping.
func TestExpiry(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		first, then time.Duration // since the stream began, 0 for never; the key changes after five seconds
		ends        time.Duration
	}{
		"as it was":  {first: 10 * time.Second, then: 10 * time.Second, ends: 10 * time.Second},
		"prolonged":  {first: 10 * time.Second, then: 20 * time.Second, ends: 20 * time.Second},
		"shortened":  {first: time.Hour, then: 10 * time.Second, ends: 10 * time.Second},
		"set":        {then: 10 * time.Second, ends: 10 * time.Second},
		"past":       {then: time.Second, ends: 5 * time.Second},
		"taken away": {first: 10 * time.Second},
		"never":      {},
	} {
		for form, events := range map[string]bool{"websocket": false, "events": true} {
			t.Run(name+", "+form, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					key, began := new(ruling), time.Now()
					key.expire(began, tt.first)
					h := New(Options{})
					far := serveOverPipe(t, h, Subscription{Hub: "h", Allows: everything, CheckKey: key.stands}, events)
					end := hearEnd(far, began)
					time.Sleep(5 * time.Second)
					key.expire(began, tt.then)
					h.RecheckKeys()
					select {
					case <-time.After(24 * time.Hour):
						if tt.ends != 0 {
							t.Error("it did not end")
						}
					case got := <-end:
						if got.after != tt.ends || !bytes.Contains(got.heard, []byte("the key has expired")) {
							t.Errorf("it ended after %s, want %s, and was told %q", got.after, tt.ends, got.heard)
						}
					}
					_ = far.Close()
					synctest.Wait()
					if h.Clients() != 0 {
						t.Error("it is still there")
					}
				})
			})
		}
	}
}

// Queued frames are not sent after the key has expired.
func TestExpiry_DropsQueuedFrames(t *testing.T) {
	t.Parallel()
	for form, events := range map[string]bool{"websocket": false, "events": true} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				key, began := new(ruling), time.Now()
				key.expire(began, 5*time.Second)
				h := New(Options{QueueBytes: 1 << 20})
				far := serveOverPipe(t, h, Subscription{Hub: "h", Allows: everything, CheckKey: key.stands}, events)
				for i := range 60 {
					h.Broadcast(Batch{Notifications: []relay.Notification{sized("h", "", "job.created", i, 16_000)}})
				}
				time.Sleep(6 * time.Second)
				got := <-hearEnd(far, began)
				if len(got.heard) > 2*blockingWriteBytes || !bytes.Contains(got.heard, []byte("the key has expired")) {
					t.Errorf(
						"%d bytes came behind the end, the last of them %q",
						len(got.heard),
						got.heard[max(0, len(got.heard)-100):],
					)
				}
				_ = far.Close()
				synctest.Wait()
			})
		})
	}
}

func everything(string, string) bool { return true }

// expire sets the key's time, 0 for never.
func (r *ruling) expire(began time.Time, after time.Duration) {
	s := Authorization{}
	if after != 0 {
		s.Expires = began.Add(after)
	}
	r.Store(&s)
}

// goodbye returns everything that a client receives until the relay ends its stream.
type goodbye struct {
	heard []byte
	after time.Duration
}

// hearEnd reads until a reason comes or the connection ends.
func hearEnd(conn net.Conn, began time.Time) <-chan goodbye {
	end := make(chan goodbye, 1)
	go func() {
		var heard []byte
		for space := make([]byte, 4096); ; {
			n, err := conn.Read(space)
			heard = append(heard, space[:n]...)
			if err != nil || bytes.Contains(heard, []byte("the key ")) {
				end <- goodbye{heard, time.Since(began)}
				return
			}
		}
	}()
	return end
}
