package hub

import (
	"runtime"
	"sync"
	"sync/atomic"
)

const (
	// minClientsPerGoroutine is how many clients one goroutine walks before another is worth waking up, which costs some twenty writes.
	minClientsPerGoroutine = 128
	// sendBatchSize is how many clients a walker takes at a time: few, so that nobody waits long for another's last, but not fewer,
	// since each step is a word between processors.
	sendBatchSize = 64
)

// parallelWrite gives a burst to many clients by several goroutines, so that the last client waits for fewer writes. It is over when
// all steps are done: a walker for which no processor was idle finds nothing left when it begins, and nobody waits for it.
type parallelWrite struct {
	clients   []*connection
	burst     *frameBatch
	next      atomic.Int64   // the first client that nobody has taken
	accepted  atomic.Int64   // how many clients have taken the burst
	remaining sync.WaitGroup // the steps
}

// writeParallel gives b, of which every client takes all, and returns how many have taken it. Nobody writes to them any more then.
func writeParallel(clients []*connection, b *frameBatch) int {
	walkers := min(len(clients)/minClientsPerGoroutine, runtime.GOMAXPROCS(0))
	if walkers <= 1 {
		took := 0
		for _, c := range clients {
			if c.write(b) {
				took++
			}
		}
		return took
	}
	w := newParallelWrite(clients, b)
	for range walkers - 1 {
		go w.run()
	}
	w.run()
	return w.wait()
}

func newParallelWrite(clients []*connection, b *frameBatch) *parallelWrite {
	b.joinedBytes() // made by one
	w := &parallelWrite{clients: clients, burst: b}
	w.remaining.Add((len(clients) + sendBatchSize - 1) / sendBatchSize)
	return w
}

func (w *parallelWrite) run() {
	for {
		end := int(w.next.Add(sendBatchSize))
		begin := end - sendBatchSize
		if begin >= len(w.clients) {
			return
		}
		took := 0
		for _, c := range w.clients[begin:min(end, len(w.clients))] {
			if c.write(w.burst) {
				took++
			}
		}
		w.accepted.Add(int64(took))
		w.remaining.Done()
	}
}

// wait returns how many clients have taken the burst, once no walker writes to any.
func (w *parallelWrite) wait() int {
	w.remaining.Wait()
	return int(w.accepted.Load())
}
