package main

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// watchAll empties each socket as soon as something has come, by one epoll of its own, until nothing more is asked.
func watchAll(all []*client, asked <-chan string) error {
	epoll, err := syscall.EpollCreate1(0)
	if err != nil {
		return err
	}
	late := make([]time.Duration, 0, 1<<20)
	for i, c := range all {
		c.late = &late
		err := syscall.EpollCtl(epoll, syscall.EPOLL_CTL_ADD, c.fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(i)})
		if err != nil {
			return err
		}
	}
	events := make([]syscall.EpollEvent, 256)
	buf := make([]byte, 256<<10)
	for {
		select {
		case what, more := <-asked:
			if !more {
				return nil
			}
			tell(what, all)
		default:
		}
		const wait = 5 // milliseconds that a question may wait
		n, err := syscall.EpollWait(epoll, events, wait)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
		for _, e := range events[:max(n, 0)] {
			if err := all[e.Fd].empty(buf); err != nil {
				return fmt.Errorf("client %d: %w", e.Fd+1, err)
			}
		}
	}
}
