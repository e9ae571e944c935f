package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
)

// playPlugin is a plugin that accepts all events and does nothing.
func playPlugin() error {
	return sdk.ServeSink(func(context.Context, relay.Notification) error { return nil },
		sdk.Concurrency(pluginConcurrent))
}

// playHost runs plugins. For each command, it measures and prints a line of numbers.
func playHost(lines *bufio.Scanner) error {
	debug.SetGCPercent(300) // like the daemon
	ctx := context.Background()
	h, err := newPluginHost(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	for {
		command, err := readCommand(lines)
		if err != nil {
			return nil //nolint:nilerr // the input has ended
		}
		var a, b float64
		switch command {
		case "events":
			a, b, err = callConcurrently(pluginEvents, func(id string) error { return h.Deliver(ctx, newEvent(id)) })
		case "echo":
			a, b, err = runWithEcho(func(e *echo) (float64, float64, error) {
				return callConcurrently(pluginEvents, func(string) error { return e.send() })
			})
		case "late":
			a, b, err = measurePluginLatency(ctx, h)
		case "restart":
			a, b, err = measureRestart(ctx)
		case "idle":
			a, b, err = idlePlugins(ctx)
		default:
			err = fmt.Errorf("unknown command %q", command)
		}
		if err != nil {
			return err
		}
		fmt.Println(a, b)
	}
}

func newPluginHost(ctx context.Context) (*host.Host, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	h, err := host.New(host.Options{
		Name: "bench", Command: []string{self}, Env: []string{roleVariable + "=" + rolePlugin}, MaxCrashes: 1000,
	})
	if err != nil {
		return nil, err
	}
	return h, h.Deliver(ctx, newEvent("first"))
}

func newEvent(id string) relay.Delivery {
	return relay.Delivery{ID: id, Attempt: 1, Notifications: []relay.Notification{{
		ID: id, Topic: "container.instance.state.changed", Hub: benchHub, Account: "5f0c8a7e9d3b2a1c4e6f8a91",
		Cursor: "1-1", Data: []byte(event),
	}}}
}

// callConcurrently makes n concurrent calls and returns their rate per second, and the CPU microseconds of this
// process per call.
func callConcurrently(n int, call func(id string) error) (rate, cost float64, err error) {
	var next, failed atomic.Int64
	var wg sync.WaitGroup
	runtime.GC()
	before, startedAt := ownCPUTime(), time.Now()
	for range pluginConcurrent {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n) && failed.Load() == 0; i = next.Add(1) {
				if call(strconv.FormatInt(1e15+i, 10)) != nil {
					failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if failed.Load() > 0 {
		return 0, 0, errors.New("a call failed")
	}
	rate = float64(n) / time.Since(startedAt).Seconds()
	return rate, float64((ownCPUTime() - before).Nanoseconds()) / 1e3 / float64(n), nil
}

// measurePluginLatency returns the 99th percentile of the call time in milliseconds at a steady rate, for the plugin
// and for a bare socket.
func measurePluginLatency(ctx context.Context, h *host.Host) (late, bare float64, err error) {
	late, err = callAtSteadyRate(func(i int) error { return h.Deliver(ctx, newEvent(strconv.Itoa(i))) })
	if err != nil {
		return 0, 0, err
	}
	bare, _, err = runWithEcho(func(e *echo) (float64, float64, error) {
		late, err := callAtSteadyRate(func(int) error { return e.send() })
		return late, 0, err
	})
	return late, bare, err
}

func callAtSteadyRate(call func(i int) error) (p99 float64, err error) {
	times := make([]time.Duration, pluginSteady)
	var failed atomic.Bool
	var wg sync.WaitGroup
	i := 0
	err = runPaced(pluginSteady, time.Millisecond, func(time.Time) error {
		at := i
		i++
		wg.Go(func() {
			startedAt := time.Now()
			if call(at) != nil {
				failed.Store(true)
			}
			times[at] = time.Since(startedAt)
		})
		return nil
	})
	wg.Wait()
	if failed.Load() {
		err = errors.New("a call failed")
	}
	return milliseconds(percentile(times, 99)), err
}

// measureRestart returns the maximum time, in milliseconds, from killing a plugin until it has accepted another
// event, and the time to start a process that responds. Each kill is the first crash of a plugin, because later
// restarts are delayed on purpose.
func measureRestart(ctx context.Context) (longest, bare float64, err error) {
	for range pluginRestarts {
		h, err := newPluginHost(ctx)
		if err != nil {
			return 0, 0, err
		}
		took, err := timeCall(func() error {
			pid := h.Status().PID
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
			for h.Status().PID == pid || h.Deliver(ctx, newEvent("again")) != nil {
				runtime.Gosched()
			}
			return nil
		})
		if err := errors.Join(err, h.Close()); err != nil {
			return 0, 0, err
		}
		longest = max(longest, milliseconds(took))
	}
	took, err := timeCall(func() error {
		_, err := runWithEchoProcess(func(e *echo) error { return e.send() })
		return err
	})
	return longest, milliseconds(took), err
}

// idlePlugins returns the memory in MiB that each idle plugin adds to this process, and the memory before.
func idlePlugins(ctx context.Context) (each, before float64, err error) {
	weigh := func() (float64, error) {
		debug.FreeOSMemory()
		return residentMiB(os.Getpid())
	}
	if before, err = weigh(); err != nil {
		return 0, 0, err
	}
	for range pluginIdle {
		h, err := newPluginHost(ctx)
		if err != nil {
			return 0, 0, err
		}
		defer func() { _ = h.Close() }()
	}
	after, err := weigh()
	return (after - before) / pluginIdle, before, err
}

// echo is a process that responds with one byte to each event.
type echo struct {
	conn  net.Conn
	queue chan chan struct{} // pending calls of send, in order
	mu    sync.Mutex
	out   *bufio.Writer
	wake  chan struct{}
}

func runWithEcho(use func(*echo) (float64, float64, error)) (a, b float64, err error) {
	_, err = runWithEchoProcess(func(e *echo) error {
		var err error
		a, b, err = use(e)
		return err
	})
	return a, b, err
}

func runWithEchoProcess(use func(*echo) error) (*echo, error) {
	dir, err := os.MkdirTemp("", "hubrelay-echo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	listener, err := net.Listen("unix", dir+"/s")
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, dir+"/s")
	cmd.Env = append(os.Environ(), roleVariable+"="+roleEcho)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() { _ = cmd.Wait() }()
	conn, err := listener.Accept()
	if err != nil {
		return nil, err
	}
	e := &echo{
		conn: conn, out: bufio.NewWriterSize(conn, 64<<10),
		queue: make(chan chan struct{}, 2*pluginConcurrent), wake: make(chan struct{}, 1),
	}
	var wg sync.WaitGroup
	wg.Go(e.flush)
	wg.Go(e.read)
	err = use(e)
	close(e.wake)
	_ = conn.Close()
	wg.Wait()
	return e, err
}

// send sends one event and waits for its byte.
func (e *echo) send() error {
	done := make(chan struct{})
	e.mu.Lock()
	e.queue <- done
	_, err := e.out.WriteString(event)
	e.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
	<-done
	return nil
}

func (e *echo) flush() {
	for range e.wake {
		e.mu.Lock()
		_ = e.out.Flush()
		e.mu.Unlock()
	}
}

func (e *echo) read() {
	in := bufio.NewReader(e.conn)
	for {
		if _, err := in.ReadByte(); err != nil {
			return
		}
		close(<-e.queue)
	}
}

// playEcho is the process that responds.
func playEcho(args []string) error {
	conn, err := net.Dial("unix", args[0])
	if err != nil {
		return err
	}
	in, out, buf := bufio.NewReaderSize(conn, 64<<10), bufio.NewWriter(conn), make([]byte, len(event))
	for {
		if _, err := io.ReadFull(in, buf); err != nil {
			return nil //nolint:nilerr // the connection was closed
		}
		if err := out.WriteByte(1); err != nil {
			return err
		}
		if in.Buffered() < len(event) {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}
