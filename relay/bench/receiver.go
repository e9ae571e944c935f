package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// receiver receives webhooks. One goroutine serves all connections with epoll, to use little CPU time. It responds in
// the order of the requests.
type receiver struct {
	epoll, listener int
	conns           map[int]*httpPeer
	events          []syscall.EpollEvent
	buf             []byte

	hold    bool          // do not respond
	delay   time.Duration // before a response
	waiting []pendingResponse

	count       int // since the last reset
	signed      int
	first, last time.Time
	latencies   []time.Duration // of stamped bodies
	await       int             // if not 0, report after that many requests
}

// httpPeer is a connection with an incomplete request.
type httpPeer struct{ in []byte }

type pendingResponse struct {
	fd  int
	due time.Time
}

// publishedAt precedes the time of publishing, in nanoseconds, in a body.
const publishedAt = `"at-`

// playReceiver prints its address, and one line for each command:
//
//	answer DELAY  respond after DELAY from now on, and at once to pending requests
//	hold          do not respond
//	reset         reset the counters
//	await N       after N requests: the number of signed ones, nanoseconds from the first to the last
//	p99           the 99th percentile of the nanoseconds from published to received
func playReceiver(lines *bufio.Scanner) error {
	r, address, err := newReceiver()
	if err != nil {
		return err
	}
	fmt.Println(address)
	commands := make(chan string)
	go func() {
		defer close(commands)
		for lines.Scan() {
			commands <- lines.Text()
		}
	}()
	for {
		if err := r.serve(); err != nil {
			return err
		}
		select {
		case line, more := <-commands:
			if !more {
				return nil
			}
			if err := r.runCommand(line); err != nil {
				return err
			}
		default:
		}
	}
}

func newReceiver() (*receiver, net.Addr, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = l.Close() }()
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, nil, errors.New("not a TCP listener")
	}
	file, err := tcp.File()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = file.Close() }()
	r := &receiver{conns: make(map[int]*httpPeer), events: make([]syscall.EpollEvent, 256), buf: make([]byte, 64<<10)}
	if r.listener, err = syscall.Dup(int(file.Fd())); err != nil {
		return nil, nil, err
	}
	if err := syscall.SetNonblock(r.listener, true); err != nil {
		return nil, nil, err
	}
	if r.epoll, err = syscall.EpollCreate1(0); err != nil {
		return nil, nil, err
	}
	return r, l.Addr(), r.addToEpoll(r.listener)
}

func (r *receiver) addToEpoll(fd int) error {
	event := &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)}
	return syscall.EpollCtl(r.epoll, syscall.EPOLL_CTL_ADD, fd, event)
}

func (r *receiver) runCommand(line string) error {
	var word, value string
	_, _ = fmt.Sscan(line, &word, &value)
	switch word {
	case "answer":
		delay, err := time.ParseDuration(value)
		if err != nil {
			return err
		}
		r.delay, r.hold = delay, false
		for i := range r.waiting {
			r.waiting[i].due = time.Time{}
		}
	case "hold":
		r.hold = true
	case "reset":
		r.count, r.signed, r.latencies = 0, 0, r.latencies[:0]
	case "await":
		n, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		r.await = n
		r.reportWhenComplete()
		return nil
	case "p99":
		fmt.Println(percentile(r.latencies, 99).Nanoseconds())
		return nil
	default:
		return fmt.Errorf("unknown command %q", line)
	}
	fmt.Println("ok")
	return nil
}

func (r *receiver) reportWhenComplete() {
	if r.await > 0 && r.count >= r.await {
		r.await = 0
		fmt.Println(r.signed, r.last.Sub(r.first).Nanoseconds())
	}
}

// serve handles pending events and returns after at most five milliseconds.
func (r *receiver) serve() error {
	timeout := 5
	if len(r.waiting) > 0 && !r.hold {
		// The resolution of epoll is 1 ms, which is too coarse for the delay.
		left := min(time.Until(r.waiting[0].due), 5*time.Millisecond)
		if left > 0 {
			var set syscall.FdSet
			set.Bits[r.epoll/64] |= 1 << (r.epoll % 64)
			tv := syscall.NsecToTimeval(left.Nanoseconds())
			_, _ = syscall.Select(r.epoll+1, &set, nil, nil, &tv)
		}
		timeout = 0
	}
	n, err := syscall.EpollWait(r.epoll, r.events, timeout)
	if err != nil && !errors.Is(err, syscall.EINTR) {
		return err
	}
	now := time.Now()
	for _, e := range r.events[:max(n, 0)] {
		if fd := int(e.Fd); fd != r.listener {
			r.read(fd, now)
		} else if err := r.acceptConns(); err != nil {
			return err
		}
	}
	for !r.hold && len(r.waiting) > 0 && !r.waiting[0].due.After(now) {
		r.sendResponse(r.waiting[0].fd)
		r.waiting = r.waiting[1:]
	}
	r.reportWhenComplete()
	return nil
}

func (r *receiver) acceptConns() error {
	for {
		fd, _, err := syscall.Accept4(r.listener, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
		if errors.Is(err, syscall.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
		r.conns[fd] = &httpPeer{}
		if err := r.addToEpoll(fd); err != nil {
			return err
		}
	}
}

// read reads a request or a part of it. A sender waits for each response, so there is at most one request.
func (r *receiver) read(fd int, now time.Time) {
	n, err := syscall.Read(fd, r.buf)
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
		return
	}
	if err != nil || n == 0 {
		delete(r.conns, fd)
		r.waiting = slices.DeleteFunc(r.waiting, func(a pendingResponse) bool { return a.fd == fd })
		_ = syscall.Close(fd)
		return
	}
	peer, text := r.conns[fd], r.buf[:n]
	if len(peer.in) > 0 {
		peer.in = append(peer.in, text...)
		text = peer.in
	}
	head, body, ok := splitRequest(text)
	if !ok {
		if len(peer.in) == 0 {
			peer.in = append(peer.in, text...)
		}
		return
	}
	peer.in = peer.in[:0]
	r.countRequest(head, body, now)
	if r.delay == 0 && !r.hold {
		r.sendResponse(fd)
		return
	}
	r.waiting = append(r.waiting, pendingResponse{fd, now.Add(r.delay)})
}

// splitRequest splits a request if it is complete.
func splitRequest(text []byte) (head, body []byte, ok bool) {
	head, body, ok = bytes.Cut(text, []byte("\r\n\r\n"))
	if !ok {
		return nil, nil, false
	}
	_, length, ok := bytes.Cut(head, []byte("\r\nContent-Length: "))
	if !ok {
		return head, nil, true
	}
	length, _, _ = bytes.Cut(length, []byte("\r\n"))
	n, err := strconv.Atoi(string(length))
	return head, body, err == nil && len(body) >= n
}

func (r *receiver) countRequest(head, body []byte, now time.Time) {
	if r.count == 0 {
		r.first = now
	}
	r.count++
	r.last = now
	if bytes.Contains(head, []byte("\r\nwebhook-signature: v1,")) {
		r.signed++
	}
	if late, ok := latencyOf(body, now); ok {
		r.latencies = append(r.latencies, late)
	}
}

// latencyOf returns the time from the time of publishing in a body until now.
func latencyOf(body []byte, now time.Time) (time.Duration, bool) {
	_, at, ok := bytes.Cut(body, []byte(publishedAt))
	if !ok {
		return 0, false
	}
	at, _, _ = bytes.Cut(at, []byte(`"`))
	ns, err := strconv.ParseInt(string(at), 10, 64)
	return now.Sub(time.Unix(0, ns)), err == nil
}

var okResponse = []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

func (r *receiver) sendResponse(fd int) {
	_, _ = syscall.Write(fd, okResponse) // read detects a closed connection
}
