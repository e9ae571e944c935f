package hub

import (
	"runtime"
	"sync"
	"sync/atomic"
)

const (
	// walkAlone is how many clients one goroutine walks before another is worth waking up, which costs some twenty writes.
	walkAlone = 128
	// walkStep is how many clients a walker takes at a time: few, so that nobody waits long for another's last, but not fewer,
	// since each step is a word between processors.
	walkStep = 64
)

// walk gives a burst to many clients by several goroutines, so that the last client waits for fewer writes. It is over when
// all steps are done: a walker for which no processor was idle finds nothing left when it begins, and nobody waits for it.
type walk struct {
	clients []*client
	burst   *burst
	next    atomic.Int64   // the first client that nobody has taken
	took    atomic.Int64   // how many clients have taken the burst
	left    sync.WaitGroup // the steps
}

// walkAll gives b, of which every client takes all, and returns how many have taken it. Nobody writes to them any more then.
func walkAll(clients []*client, b *burst) int {
	walkers := min(len(clients)/walkAlone, runtime.GOMAXPROCS(0))
	if walkers <= 1 {
		took := 0
		for _, c := range clients {
			if c.send(b) {
				took++
			}
		}
		return took
	}
	w := newWalk(clients, b)
	for range walkers - 1 {
		go w.run()
	}
	w.run()
	return w.wait()
}

func newWalk(clients []*client, b *burst) *walk {
	b.bytes() // made by one
	w := &walk{clients: clients, burst: b}
	w.left.Add((len(clients) + walkStep - 1) / walkStep)
	return w
}

func (w *walk) run() {
	for {
		end := int(w.next.Add(walkStep))
		begin := end - walkStep
		if begin >= len(w.clients) {
			return
		}
		took := 0
		for _, c := range w.clients[begin:min(end, len(w.clients))] {
			if c.send(w.burst) {
				took++
			}
		}
		w.took.Add(int64(took))
		w.left.Done()
	}
}

// wait returns how many clients have taken the burst, once no walker writes to any.
func (w *walk) wait() int {
	w.left.Wait()
	return int(w.took.Load())
}
