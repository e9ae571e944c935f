package main_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

const (
	// checkInterval is the interval of checks for closed connections.
	checkInterval = 100 * time.Millisecond
	// readTime is the time that stopped readers continue to read. If none reads its close frame in time, they stop
	// again.
	readTime = 5 * time.Second
	// stopTime is the time after which stopped readers read, even if no node waits for a client. Between two checks, a node may
	// have written a close frame to the buffers of the connection.
	stopTime = 5 * time.Second
)

// stopReaders stops the followers of one kind and hub from reading until the relay closes one of them with 1013.
func (l *losses) stopReaders() {
	l.t.Helper()
	flooded, kind := lossHubs[l.random.IntN(len(lossHubs))], followerKinds[l.random.IntN(len(followerKinds))]
	var stopped []*lossFollower
	for _, f := range l.followers {
		if f.followerKind.name == kind.name && (f.hub == flooded || f.hub == "") {
			stopped = append(stopped, f)
		}
	}
	readOn := func(yes bool) {
		for _, f := range stopped {
			f.barrier.set(yes)
		}
	}
	seen := func() (n int) {
		for _, f := range stopped {
			_, _, slow := f.figures()
			n += slow
		}
		return n
	}
	l.flooded.Store(flooded)
	defer func() {
		l.flooded.Store("")
		readOn(true)
	}()
	before := seen()
	nextCheck, stoppedAt := time.Now(), time.Now()
	testkit.Eventually(l.t, kind.name+" of "+flooded+" to be closed with 1013", func() error {
		if seen() > before {
			return nil
		}
		if now := time.Now(); now.After(nextCheck) {
			mustRead := l.isClosing(flooded, kind.streamType) || now.Sub(stoppedAt) > stopTime
			readOn(mustRead) // earlier data must be read before the close frame
			nextCheck = now.Add(checkInterval)
			if mustRead {
				nextCheck = now.Add(readTime)
				stoppedAt = nextCheck
			}
		}
		return errors.New("none was")
	})
}

// isClosing reports whether a node waits for a client to read its close frame. It considers streams of this type, of the hub
// or of its account.
func (l *losses) isClosing(hub, streamType string) bool {
	l.t.Helper()
	for _, node := range l.nodes {
		var page struct {
			Data []struct {
				Hub    string `json:"hub_id"`
				Queued int    `json:"queued_bytes"`
				Type   string
				State  string
			}
		}
		if err := json.Unmarshal([]byte(l.get(node.Load(), "/api/connections?limit=1000")), &page); err != nil {
			l.t.Fatal(err)
		}
		for _, c := range page.Data {
			if c.State == "closing" && c.Queued > 0 && c.Type == streamType && (c.Hub == hub || c.Hub == "") {
				return true
			}
		}
	}
	return false
}

// paddings returns texts that enlarge the next notifications of a hub by up to 30 KiB. They cannot be compressed.
func (l *losses) paddings(hub string, random *rand.Rand) []string {
	if l.flooded.Load() != hub {
		return make([]string, 1+random.IntN(4))
	}
	list := make([]string, 1+random.IntN(24))
	for i := range list {
		bytes := make([]byte, random.IntN(22<<10))
		for j := range bytes {
			bytes[j] = byte(random.Uint32())
		}
		list[i] = base64.StdEncoding.EncodeToString(bytes)
	}
	return list
}
