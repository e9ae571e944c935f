package app

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/hubrelay/hubrelay/relay/hub"
)

const (
	// waveEvery is how often the clients are counted.
	waveEvery = time.Second
	// waveClients is how many came or went where cleaning up behind them is worth a collection.
	waveClients = 1000
	// waveOver is how many may still come or go in waveEvery when a wave is over.
	waveOver = 20
	// waveRest is for how many times waveEvery no more than waveOver may come or go until what came and went before is no
	// part of the next wave.
	waveRest = 5
)

// wave notices that many clients came or went and that this is over.
type wave struct{ last, moved, quiet int }

// over is told how many clients there are, and says once behind a wave that it is over.
func (w *wave) over(clients int) bool {
	step := max(clients-w.last, w.last-clients)
	w.last = clients
	w.moved += step
	if step > waveOver {
		w.quiet = 0
		return false
	}
	w.quiet++
	over := w.moved >= waveClients
	if over || w.quiet >= waveRest {
		w.moved = 0
	}
	return over
}

// followWaves gives memory back behind each wave of clients. Tokens and upgrades leave twice as much garbage as a client
// keeps, and a node whose clients are idle would not collect it for minutes.
func followWaves(ctx context.Context, clients *hub.Hub) error {
	tick := time.NewTicker(waveEvery)
	defer tick.Stop()
	var w wave
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if w.over(clients.Clients()) {
			debug.FreeOSMemory()
		}
	}
}
