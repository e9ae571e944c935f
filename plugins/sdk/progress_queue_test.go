package sdk

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	"github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// slow is a daemon that takes a report when it likes to.
type slow struct {
	grpc.ServerStreamingServer[driverv1.MigrateResponse]
	takes chan *driverv1.Progress
}

func (s slow) Send(m *driverv1.MigrateResponse) error {
	s.takes <- m.GetProgress()
	return nil
}

// Whoever reports never waits: of each step the latest is kept, and all of those are sent before the end.
func TestProgressQueue_KeepsLatestOfEachStep(t *testing.T) {
	var log bytes.Buffer
	r := newProgressQueue(slog.New(slog.NewTextHandler(&log, nil)))
	daemon := slow{takes: make(chan *driverv1.Progress)}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		r.send(daemon)
		close(daemon.takes)
	}()
	note := []byte("a")
	r.add(relay.Progress{Step: "stop", Completed: true, Note: note})
	note[0] = 'b' // the driver uses it again
	got := []string{fmt.Sprint(<-daemon.takes)}
	for n := range 1000 {
		r.add(relay.Progress{Step: "copy", Bytes: int64(n)})
		r.add(relay.Progress{Step: "start"})
	}
	r.add(relay.Progress{Step: "copy", Completed: true})
	r.add(relay.Progress{Step: "copy", Note: make([]byte, wire.MaxNote+1)})
	r.finish()
	r.add(relay.Progress{Step: "late"})
	for p := range daemon.takes {
		got = append(got, fmt.Sprint(p))
	}
	<-sent
	if !strings.Contains(got[0], `note:"a"`) {
		t.Errorf("the first report is %s", got[0])
	}
	// One of each may have been on its way before the others came.
	if n := len(got); n < 3 || n > 5 ||
		!slices.ContainsFunc(got,
			func(s string) bool { return strings.Contains(s, "copy") && strings.Contains(s, "completed:true") }) {
		t.Errorf("sent were %v", got)
	}
	if text := strings.Join(got, "\n"); strings.Contains(text, "late") ||
		!strings.Contains(log.String(), "its note is too long") {
		t.Errorf("sent were %v, logged was %s", got, log.String())
	}
}
