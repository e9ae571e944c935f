package hub

import (
	"context"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

// heldLog is a log whose reads wait for what they are to find.
type heldLog chan chan found

type found struct {
	lost bool
	list []relay.Notification
}

func (l heldLog) ReadFrom(_ context.Context, _ int, after streamid.Position, _ int) (streamid.Position, bool, []relay.Notification, error) {
	read := make(chan found)
	l <- read
	f := <-read
	return after, f.lost, f.list, nil
}

func (l heldLog) next(t *testing.T) chan<- found {
	t.Helper()
	select {
	case read := <-l:
		return read
	case <-time.After(patience):
		t.Fatal("the log is not read")
		return nil
	}
}

// A read that began before its log was set back proves nothing afterwards, neither to those who come while it is under way
// nor to those who come when it is over.
func TestReadsUnderWayAreForgotten(t *testing.T) {
	t.Parallel()
	log := make(heldLog, 1)
	h := newHistory(log, 1<<20)
	ask := func(partition int) <-chan bool {
		lost := make(chan bool, 1)
		go func() {
			_, _, gone, err := h.ReadFrom(t.Context(), partition, streamid.Position{MS: 1})
			if err != nil {
				t.Error(err)
			}
			lost <- gone
		}()
		return lost
	}
	there := found{list: []relay.Notification{{Cursor: "2-0", Data: []byte("{}")}}}
	before := ask(0)
	readBefore := log.next(t)
	other := ask(1)
	readOther := log.next(t)
	h.Invalidate(0)
	meanwhile := ask(0)
	log.next(t) <- found{lost: true}
	readBefore <- there
	readOther <- there
	if <-before || <-other || !<-meanwhile {
		t.Error("an answer is not what its read found")
	}
	afterwards := ask(0)
	log.next(t) <- found{lost: true}
	if !<-afterwards {
		t.Error("what was read before the log was set back is believed")
	}
	if <-ask(1) { // without a read
		t.Error("what was read of another partition is forgotten")
	}
}
