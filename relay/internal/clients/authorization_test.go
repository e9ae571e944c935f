package clients

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

// ruling is the authorization of all keys. The zero value changes nothing.
type ruling struct{ atomic.Pointer[Authorization] }

func (r *ruling) stands() Authorization {
	if s := r.Load(); s != nil {
		return *s
	}
	return Authorization{}
}

var withdrawn = Authorization{Refused: relay.NewError(relay.CodeAuthInvalid, "the key is gone")}

// A ping closes the streams of a key that lost access.
func TestPing_ClosesInvalidKeys(t *testing.T) {
	t.Parallel()
	for reason, now := range map[string]Authorization{
		"no longer opens": withdrawn, "has changed; connect again": {ScopeChanged: true},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			var key ruling
			n := startNode(
				t,
				Options{PingInterval: 20 * time.Millisecond},
				func(s *Subscription) { s.CheckKey = key.stands },
			)
			conn := n.dial(t, "hub=h")
			n.Broadcast([]relay.Notification{event("h", "", "job.created", 1)})
			numbers(t, conn, 1)
			key.Store(&now)
			wantClose(t, conn, frame.ClosePolicy, reason)
			if now.Refused != nil {
				n.wantEnding(t, ClosedKeyRemoved)
			} else {
				n.wantEnding(t, ClosedKeyInvalid)
			}
		})
	}
}

// RecheckKeys does not wait for a ping and keeps the streams of other keys.
func TestRecheckKeys(t *testing.T) {
	t.Parallel()
	var key ruling
	n := startNode(t, Options{PingInterval: time.Hour}, func(s *Subscription) {
		if s.Key == "gone" {
			s.CheckKey = key.stands
		}
	})
	hub, account, other := n.dial(t, "hub=h&key=gone"), n.dial(t, "account=a&key=gone"), n.dial(t, "hub=h&key=stays")
	n.RecheckKeys()
	n.Broadcast([]relay.Notification{event("h", "", "job.created", 1)})
	for _, conn := range []*websocket.Conn{hub, account, other} { // nothing has changed yet
		numbers(t, conn, 1)
	}
	key.Store(&withdrawn)
	n.RecheckKeys()
	for _, conn := range []*websocket.Conn{hub, account} {
		wantClose(t, conn, frame.ClosePolicy, "no longer")
		n.wantEnding(t, ClosedKeyRemoved)
	}
	if status, _ := n.refusal(t, "hub=h&key=gone"); status != http.StatusUnauthorized {
		t.Errorf("one that was checked before the key went is answered %d", status)
	}
	n.Broadcast([]relay.Notification{event("h", "", "job.created", 2)})
	numbers(t, other, 1)
}

// If a key changes between its check and the response, the client is closed after the response.
func TestKeyChangesDuringTheUpgrade(t *testing.T) {
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := startNodeOver(t, Options{PingInterval: time.Hour}, func(s *Subscription) {
				s.CheckKey = func() Authorization { return Authorization{ScopeChanged: true} }
			}, start)
			t.Cleanup(n.server.CloseClientConnections)
			if name != "HTTP/2" {
				wantClose(t, n.dial(t, "hub=h"), frame.ClosePolicy, "has changed")
				n.wantEnding(t, ClosedKeyInvalid)
			}
			n.listen(t, "hub=h").expectClose(frame.ClosePolicy, "has changed")
			n.wantEnding(t, ClosedKeyInvalid)
		})
	}
}

// Queued frames are not sent after the key has changed: the key may no longer see them.
func TestKeyChange_DropsQueuedFrames(t *testing.T) {
	overEach(
		t,
		Options{PingInterval: time.Hour, QueueBytes: 64 << 20, WriteTimeout: patience, CloseTimeout: patience},
		func(t *testing.T, n *node) {
			var key ruling
			n.edit = func(s *Subscription) { s.CheckKey = key.stands }
			e := n.listen(t, "hub=h")
			fillSocket(n.Server)
			key.Store(&Authorization{ScopeChanged: true})
			n.RecheckKeys()
			if got := e.untilClose(frame.ClosePolicy, "has changed"); got >= fillMessages {
				t.Errorf("all of %d messages came", got)
			}
			n.wantEnding(t, ClosedKeyInvalid)
		},
	)
}
