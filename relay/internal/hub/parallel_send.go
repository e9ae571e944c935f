package hub

import (
	"runtime"
	"sync"
	"sync/atomic"
)

const (
	// minClientsPerGoroutine is the number of clients that justifies another goroutine, because waking one costs about
	// twenty writes.
	minClientsPerGoroutine = 128
	// sendBatchSize is the number of clients that a goroutine takes at a time. Large steps delay the last client, and
	// small ones contend for the counter.
	sendBatchSize = 64
)

// parallelSend sends a burst to many clients with several goroutines, so the last client waits for fewer writes. It
// ends when all steps are done. A goroutine that starts late finds no work, and the broadcast does not wait for it.
type parallelSend struct {
	clients   []*client
	burst     *burst
	next      atomic.Int64   // the first client without a goroutine
	accepted  atomic.Int64   // how many clients have taken the burst
	remaining sync.WaitGroup // the steps
}

// sendParallel sends b, which every client wants completely, and returns the number of clients that accepted it. All
// writes have ended when it returns.
func sendParallel(clients []*client, b *burst) int {
	walkers := min(len(clients)/minClientsPerGoroutine, runtime.GOMAXPROCS(0))
	if walkers <= 1 {
		took := 0
		for _, c := range clients {
			if c.send(b) {
				took++
			}
		}
		return took
	}
	w := newParallelSend(clients, b)
	for range walkers - 1 {
		go w.run()
	}
	w.run()
	return w.wait()
}

func newParallelSend(clients []*client, b *burst) *parallelSend {
	b.joinedBytes() // made by one
	w := &parallelSend{clients: clients, burst: b}
	w.remaining.Add((len(clients) + sendBatchSize - 1) / sendBatchSize)
	return w
}

func (w *parallelSend) run() {
	for {
		end := int(w.next.Add(sendBatchSize))
		begin := end - sendBatchSize
		if begin >= len(w.clients) {
			return
		}
		took := 0
		for _, c := range w.clients[begin:min(end, len(w.clients))] {
			if c.send(w.burst) {
				took++
			}
		}
		w.accepted.Add(int64(took))
		w.remaining.Done()
	}
}

// wait returns how many clients have taken the burst, once no walker writes to any.
func (w *parallelSend) wait() int {
	w.remaining.Wait()
	return int(w.accepted.Load())
}
