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

// receiver is the target of webhooks. One goroutine drains all connections with epoll, which costs little CPU, and
// answers in the order of the requests.
type receiver struct {
	epoll, listener int
	conns           map[int]*httpPeer
	events          []syscall.EpollEvent
	buf             []byte

	hold    bool          // answer nothing
	delay   time.Duration // before an answer
	waiting []answer

	count       int // since the last "reset"
	signed      int
	first, last time.Time
	latencies   []time.Duration // of bodies with a publishing time
	await       int             // print the result after this many requests; 0 is never
}

// httpPeer is a connection. in is the start of an incomplete request.
type httpPeer struct{ in []byte }

type answer struct {
	fd  int
	due time.Time
}

// publishedAt precedes the publishing time in nanoseconds in a body.
const publishedAt = `"at-`

// playReceiver prints its address and reads one command per line:
//
//	answer DELAY  answer after DELAY from now on, and answer held requests at once
//	hold          answer nothing
//	reset         reset the counters
//	await N       after N requests: print the number of signed ones, and the nanoseconds from first to last
//	p99           print the 99th percentile of the delays in nanoseconds
func playReceiver(lines *bufio.Scanner) error {
	r, address, err := newReceiver()
	if err != nil {
		return err
	}
	fmt.Println(address)
	told := make(chan string)
	go func() {
		defer close(told)
		for lines.Scan() {
			told <- lines.Text()
		}
	}()
	for {
		if err := r.serve(); err != nil {
			return err
		}
		select {
		case line, more := <-told:
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
	return syscall.EpollCtl(r.epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{
		Events: syscall.EPOLLIN, Fd: int32(fd),
	})
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
		r.tellWhenComplete()
		return nil
	case "p99":
		fmt.Println(percentileOf(r.latencies, 99).Nanoseconds())
		return nil
	default:
		return fmt.Errorf("unknown command %q", line)
	}
	fmt.Println("ok")
	return nil
}

func (r *receiver) tellWhenComplete() {
	if r.await > 0 && r.count >= r.await {
		r.await = 0
		fmt.Println(r.signed, r.last.Sub(r.first).Nanoseconds())
	}
}

func percentileOf(values []time.Duration, p int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)*p/100]
}

// serve does what there is to do, and returns after five milliseconds at the latest.
func (r *receiver) serve() error {
	timeout := 5
	if len(r.waiting) > 0 && !r.hold {
		// epoll counts in milliseconds, which is too coarse for a delay.
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
		r.writeReply(r.waiting[0].fd)
		r.waiting = r.waiting[1:]
	}
	r.tellWhenComplete()
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

// read reads from a connection. A sender waits for each answer, so there is at most one request.
func (r *receiver) read(fd int, now time.Time) {
	n, err := syscall.Read(fd, r.buf)
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
		return
	}
	if err != nil || n == 0 {
		delete(r.conns, fd)
		r.waiting = slices.DeleteFunc(r.waiting, func(a answer) bool { return a.fd == fd })
		_ = syscall.Close(fd)
		return
	}
	peer, text := r.conns[fd], r.buf[:n]
	if len(peer.in) > 0 {
		peer.in = append(peer.in, text...)
		text = peer.in
	}
	head, body, ok := wholeRequest(text)
	if !ok {
		if len(peer.in) == 0 {
			peer.in = append(peer.in, text...)
		}
		return
	}
	peer.in = peer.in[:0]
	r.countRequest(head, body, now)
	if r.delay == 0 && !r.hold {
		r.writeReply(fd)
		return
	}
	r.waiting = append(r.waiting, answer{fd, now.Add(r.delay)})
}

// wholeRequest splits a complete request. ok is false if a part is missing.
func wholeRequest(text []byte) (head, body []byte, ok bool) {
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
	if late, ok := timeSincePublished(body, now); ok {
		r.latencies = append(r.latencies, late)
	}
}

// timeSincePublished is the time from when a body says that it was published until now.
func timeSincePublished(body []byte, now time.Time) (time.Duration, bool) {
	_, at, ok := bytes.Cut(body, []byte(publishedAt))
	if !ok {
		return 0, false
	}
	at, _, _ = bytes.Cut(at, []byte(`"`))
	ns, err := strconv.ParseInt(string(at), 10, 64)
	return now.Sub(time.Unix(0, ns)), err == nil
}

var answered = []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

func (r *receiver) writeReply(fd int) {
	_, _ = syscall.Write(fd, answered) // a connection that is gone shows when it is read
}
