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

// watcher empties the sockets of some clients as soon as something has come.
type watcher struct {
	clients []*client
	epoll   int

	mu   sync.Mutex // held while it reads
	late []time.Duration
}

// watchAll empties each socket as soon as something has come, until nothing more is asked. There is a thread for each
// processor: clients are programs of their own, and one thread for all of them would be the last to know what several
// processors have written long before.
func watchAll(all []*client, asked <-chan string) error {
	failed := make(chan error, runtime.NumCPU())
	var watchers []*watcher
	for clients := range slices.Chunk(all, max(1, (len(all)+runtime.NumCPU()-1)/runtime.NumCPU())) {
		w, err := newWatcher(clients)
		if err != nil {
			return err
		}
		watchers = append(watchers, w)
		go func() { failed <- w.watch() }() // until the process ends
	}
	for {
		select {
		case what, more := <-asked:
			if !more {
				return nil
			}
			for _, w := range watchers {
				w.mu.Lock()
			}
			if what == "p99" {
				fmt.Println(p99(watchers).Nanoseconds())
			} else {
				tell(what, all)
			}
			for _, w := range watchers {
				w.mu.Unlock()
			}
		case err := <-failed:
			return err
		}
	}
}

// newWatcher watches by one epoll of its own. It is told of what comes once (EPOLLET): else each wait looks again at every
// socket that the one before has told of, and what that takes of the processors is missing to the servers.
func newWatcher(clients []*client) (*watcher, error) {
	epoll, err := syscall.EpollCreate1(0)
	if err != nil {
		return nil, err
	}
	w := &watcher{clients: clients, epoll: epoll, late: make([]time.Duration, 0, 1<<19)}
	for i, c := range clients {
		c.late = &w.late
		err := syscall.EpollCtl(epoll, syscall.EPOLL_CTL_ADD, c.fd, &syscall.EpollEvent{Events: syscall.EPOLLIN | unix.EPOLLET, Fd: int32(i)})
		if err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *watcher) watch() error {
	events := make([]syscall.EpollEvent, 256)
	buf := make([]byte, 256<<10)
	for {
		n, err := syscall.EpollWait(w.epoll, events, -1)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
		if err := w.empty(events[:max(n, 0)], buf); err != nil {
			return err
		}
	}
}

func (w *watcher) empty(events []syscall.EpollEvent, buf []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events {
		if err := w.clients[e.Fd].empty(buf); err != nil {
			return fmt.Errorf("client %d of %d: %w", e.Fd+1, len(w.clients), err)
		}
	}
	return nil
}

// p99 is of how late the frames came since it was asked last.
func p99(watchers []*watcher) time.Duration {
	var all []time.Duration
	for _, w := range watchers {
		all = append(all, w.late...)
		w.late = w.late[:0]
	}
	return percentile(all, 99)
}
