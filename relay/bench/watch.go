package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// watcher drains the sockets of some clients as soon as data arrives.
type watcher struct {
	clients []*client
	epoll   int

	mu       sync.Mutex // held while reading
	lateness []time.Duration
}

// watchAll drains each socket as soon as data arrives, until the commands end. It uses one thread per processor: real
// clients are separate programs, and a single thread would measure late what several processors have written.
func watchAll(all []*client, commands <-chan string) error {
	failed := make(chan error, runtime.NumCPU())
	var watchers []*watcher
	for clients := range slices.Chunk(all, max(1, (len(all)+runtime.NumCPU()-1)/runtime.NumCPU())) {
		w, err := newWatcher(clients)
		if err != nil {
			return err
		}
		watchers = append(watchers, w)
		go func() { failed <- w.watchSockets() }() // never ends without an error
	}
	for {
		select {
		case what, more := <-commands:
			if !more {
				return nil
			}
			for _, w := range watchers {
				w.mu.Lock()
			}
			if what == "p99" {
				fmt.Println(takeP99(watchers).Nanoseconds())
			} else {
				printReport(what, all)
			}
			for _, w := range watchers {
				w.mu.Unlock()
			}
		case err := <-failed:
			return err
		}
	}
}

// newWatcher creates an edge-triggered epoll (EPOLLET). Otherwise each wait would check the previous sockets again,
// which takes CPU time from the servers.
func newWatcher(clients []*client) (*watcher, error) {
	epoll, err := syscall.EpollCreate1(0)
	if err != nil {
		return nil, err
	}
	w := &watcher{clients: clients, epoll: epoll, lateness: make([]time.Duration, 0, 1<<19)}
	for i, c := range clients {
		c.lateness = &w.lateness
		err := syscall.EpollCtl(epoll, syscall.EPOLL_CTL_ADD, c.fd,
			&syscall.EpollEvent{Events: syscall.EPOLLIN | unix.EPOLLET, Fd: int32(i)})
		if err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *watcher) watchSockets() error {
	events := make([]syscall.EpollEvent, 256)
	buf := make([]byte, 256<<10)
	for {
		n, err := syscall.EpollWait(w.epoll, events, -1)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
		if err := w.drainSockets(events[:max(n, 0)], buf); err != nil {
			return err
		}
	}
}

func (w *watcher) drainSockets(events []syscall.EpollEvent, buf []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events {
		if err := w.clients[e.Fd].drainSocket(buf); err != nil {
			return fmt.Errorf("client %d of %d: %w", e.Fd+1, len(w.clients), err)
		}
	}
	return nil
}

// takeP99 returns the 99th percentile of the latencies since the last call.
func takeP99(watchers []*watcher) time.Duration {
	var all []time.Duration
	for _, w := range watchers {
		all = append(all, w.lateness...)
		w.lateness = w.lateness[:0]
	}
	return percentile(all, 99)
}
