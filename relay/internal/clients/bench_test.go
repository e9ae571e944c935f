package clients

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

// The clients of the benchmarks run in a process of their own, so that getrusage sees the server alone. This variable
// tells the child what to do: "ws://… 500" or "tcp://… 500".
const benchVariable = "HUBRELAY_HUB_BENCH_CLIENTS"

func benchClients() string { return os.Getenv(benchVariable) }

// readAsClients connects and reads until standard input ends, and prints how many bytes came whenever that grew.
func readAsClients(what string) {
	address, countText, _ := strings.Cut(what, " ")
	count, _ := strconv.Atoi(countText)
	var total atomic.Int64
	for range count {
		conn, err := benchDial(address)
		if err != nil {
			fmt.Fprintln(os.Stderr, "connect:", err)
			return
		}
		go func() {
			buffer := make([]byte, 4096)
			for {
				n, err := conn.Read(buffer)
				total.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
	}
	go func() {
		last := int64(-1)
		for range time.Tick(10 * time.Millisecond) {
			if now := total.Load(); now != last {
				fmt.Println(now)
				last = now
			}
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func benchDial(address string) (net.Conn, error) {
	if host, ok := strings.CutPrefix(address, "tcp://"); ok {
		return net.Dial("tcp", host)
	}
	ws, answer, err := websocket.DefaultDialer.Dial(address, nil)
	if err != nil {
		return nil, err
	}
	_ = answer.Body.Close()
	return ws.NetConn(), nil
}

// crowd is the child process.
type crowd struct {
	mu    sync.Mutex
	grown *sync.Cond
	bytes int64
	err   error
}

func startCrowd(b *testing.B, address string, count int) *crowd {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchVariable+"="+address+" "+strconv.Itoa(count))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	c := &crowd{}
	c.grown = sync.NewCond(&c.mu)
	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			n, err := strconv.ParseInt(lines.Text(), 10, 64)
			c.mu.Lock()
			c.bytes, c.err = n, err
			c.mu.Unlock()
			c.grown.Broadcast()
		}
		c.mu.Lock()
		c.err = io.EOF
		c.mu.Unlock()
		c.grown.Broadcast()
	}()
	b.Cleanup(func() {
		_ = in.Close()
		<-read
		_ = cmd.Wait()
	})
	return c
}

// wait blocks until the clients have read so many bytes in all.
func (c *crowd) wait(b *testing.B, bytes int64) {
	b.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.bytes < bytes {
		if c.err != nil {
			b.Fatalf("the clients ended after %d of %d bytes: %v", c.bytes, bytes, c.err)
		}
		c.grown.Wait()
	}
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const (
	benchCount = 500
	benchRate  = 200
)

func benchEvent() relay.Notification {
	return sized("h", "a", "container.instance.state.changed", 1, 350)
}

// benchHub is a hub without an HTTP test server's own wrapping.
func benchHub(b *testing.B, count int) (*Server, *crowd) {
	b.Helper()
	n := startNode(b, Options{QueueBytes: 64 << 20}, nil)
	c := startCrowd(b, n.url("hub=h&account=a"), count)
	for range count {
		<-n.connected
	}
	return n.Server, c
}

// paced calls send b.N times, at benchRate, and reports the process's CPU time for each delivery.
func paced(b *testing.B, c *crowd, frame int, send func()) {
	b.Helper()
	tick := time.NewTicker(time.Second / benchRate)
	defer tick.Stop()
	runtime.GC()
	b.ResetTimer()
	before := cpuTime(b)
	for range b.N {
		<-tick.C
		send()
	}
	spent := cpuTime(b) - before
	c.wait(b, int64(b.N)*benchCount*int64(frame))
	b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N*benchCount), "cpu-ns/delivery")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFanOut compares 500 clients at 200 messages/s with a bare loop of one write for each message and client.
// Run it with -benchtime=1000x; the bar is 1.3 times the loop.
func BenchmarkFanOut(b *testing.B) {
	n := benchEvent()
	frame := frame.New(&n, 0, nil)
	b.Run("loop", func(b *testing.B) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		c := startCrowd(b, "tcp://"+listener.Addr().String(), benchCount)
		conns := make([]net.Conn, benchCount)
		for i := range conns {
			if conns[i], err = listener.Accept(); err != nil {
				b.Fatal(err)
			}
		}
		defer func() {
			for _, conn := range conns {
				_ = conn.Close()
			}
		}()
		paced(b, c, len(frame), func() {
			for _, conn := range conns {
				if _, err := conn.Write(frame); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
	b.Run("hub", func(b *testing.B) {
		h, c := benchHub(b, benchCount)
		list := []relay.Notification{n}
		paced(b, c, len(frame), func() { h.Broadcast(Batch{Notifications: list}) })
	})
}

// BenchmarkBurst sends 5,000 messages to 500 clients as fast as they take them.
func BenchmarkBurst(b *testing.B) {
	const messages = 5000
	n := benchEvent()
	frame := int64(len(frame.New(&n, 0, nil)))
	h, c := benchHub(b, benchCount)
	list := make([]relay.Notification, 256)
	for i := range list {
		list[i] = n
	}
	b.ResetTimer()
	for i := range b.N {
		for left := messages; left > 0; left -= len(list) {
			h.Broadcast(Batch{Notifications: list[:min(left, len(list))]})
		}
		c.wait(b, int64(i+1)*messages*benchCount*frame)
	}
	b.ReportMetric(float64(b.N)*messages*benchCount/b.Elapsed().Seconds(), "deliveries/s")
}

// BenchmarkIdle reports what an idle client costs in resident memory of this process, HTTP server and garbage of the
// upgrades included (B/client), and once the runtime has given back what it does not use (settled-B/client). Run it
// with -benchtime=1x: a second round finds the memory of the first.
func BenchmarkIdle(b *testing.B) {
	const count = 5000
	for range b.N {
		debug.FreeOSMemory()
		before := resident(b)
		start := time.Now()
		server := &http.Server{ReadHeaderTimeout: patience}
		h := New(Options{})
		connected := make(chan struct{}, count)
		server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s := Subscription{Hub: "h", Allows: func(hub, account string) bool { return hub == "h" && account == "a" }}
			if problem := h.ServeWebSocket(w, r, s); problem != nil {
				http.Error(w, problem.Error(), problem.Status())
			}
			connected <- struct{}{}
		})
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- server.Serve(listener) }()
		startCrowd(b, "ws://"+listener.Addr().String(), count)
		for range count {
			<-connected
		}
		b.ReportMetric(time.Since(start).Seconds(), "s/connect")
		b.ReportMetric(float64(resident(b)-before)/count, "B/client")
		debug.FreeOSMemory()
		b.ReportMetric(float64(resident(b)-before)/count, "settled-B/client")
		stop, cancel := context.WithTimeout(b.Context(), time.Second)
		_ = h.Close(stop)
		cancel()
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			b.Error(err)
		}
	}
}

// resident is the process's resident memory in bytes.
func resident(b *testing.B) int64 {
	b.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Skip("no /proc here:", err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
