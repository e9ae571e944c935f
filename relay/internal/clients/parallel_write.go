package clients

import (
	"runtime"
	"sync"
	"sync/atomic"
)

const (
	// minClientsPerGoroutine is the number of clients for which another goroutine pays off. Waking one costs about
	// twenty writes.
	minClientsPerGoroutine = 128
	// sendBatchSize is the number of clients that a goroutine claims at a time. A large number delays the end, a
	// small one causes more cache misses on the shared counter.
	sendBatchSize = 64
)

// parallelWrite sends a frameBatch to many clients from several goroutines, so the last client waits for fewer
// writes. It ends when all steps are done. A goroutine that starts late finds no steps, and no goroutine waits for
// it.
type parallelWrite struct {
	clients   []*connection
	burst     *frameBatch
	next      atomic.Int64   // the first unclaimed client
	accepted  atomic.Int64   // number of clients that accepted the batch
	remaining sync.WaitGroup // steps of sendBatchSize clients
}

// writeParallel sends b, which all clients may see, and returns the number of clients that accepted it. All writes
// have ended when it returns.
func writeParallel(clients []*connection, b *frameBatch) int {
	goroutines := min(len(clients)/minClientsPerGoroutine, runtime.GOMAXPROCS(0))
	if goroutines <= 1 {
		accepted := 0
		for _, c := range clients {
			if c.write(b) {
				accepted++
			}
		}
		return accepted
	}
	w := newParallelWrite(clients, b)
	for range goroutines - 1 {
		go w.run()
	}
	w.run()
	return w.wait()
}

func newParallelWrite(clients []*connection, b *frameBatch) *parallelWrite {
	b.joinedBytes() // before the goroutines share it
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
		accepted := 0
		for _, c := range w.clients[begin:min(end, len(w.clients))] {
			if c.write(w.burst) {
				accepted++
			}
		}
		w.accepted.Add(int64(accepted))
		w.remaining.Done()
	}
}

// wait waits for all writes and returns the number of clients that accepted the frameBatch.
func (w *parallelWrite) wait() int {
	w.remaining.Wait()
	return int(w.accepted.Load())
}
