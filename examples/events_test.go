package examples

import (
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// testEventSource lets Chromium's EventSource listen through a line that is cut: it connects again by itself, with the
// token that it has and the id of what it got last.
func testEventSource(t *testing.T, d *daemon) {
	p := published{hub: "hub-" + rand.Text(), topic: "container.state.changed", state: "running", object: rand.Text()}
	server := start(t, append(d.env(p.hub), fmt.Sprintf("PORT=%d", d.pagePort)), "node", "listen-browser/server.mjs")
	server.line(t, "its address", func(l string) bool { return strings.HasPrefix(l, "open http") })
	l := startLine(t, strings.TrimPrefix(d.url, "http://"))
	b := startBrowser(t)
	b.call(t, "/url", map[string]any{"url": fmt.Sprintf("http://127.0.0.1:%d/", d.pagePort)})
	const script = `
		const source = new EventSource(arguments[0]);
		source.onopen = () => document.body.append(" opened ");
		source.onmessage = (event) => document.body.append(" <" + JSON.parse(event.data).object.id + "> ");`
	b.call(t, "/execute/sync", map[string]any{"script": script, "args": []any{
		"http://" + l.address + notificationsPath + "?token=" + d.token(t, p.hub),
	}})
	b.shows(t, "opened")
	want := ""
	for i := range 3 {
		l.cut()
		for k := range 2 {
			p.object = fmt.Sprintf("%d-%d", i, k)
			publishers["curl"](t, d, p)
			want += "<" + p.object + ">"
		}
		b.shows(t, "<"+p.object+">")
	}
	var text string
	b.decode(t, b.call(t, "/execute/sync", map[string]any{"script": "return document.body.textContent.match(/<[0-9-]+>/g).join('')", "args": []any{}}), &text)
	if text != want {
		t.Errorf("the page got %s, want %s", text, want)
	}
}

// line is a TCP line to a server that can be cut.
type line struct {
	address, to string

	mu    sync.Mutex
	conns []net.Conn
}

func startLine(t *testing.T, to string) *line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{address: listener.Addr().String(), to: to}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { l.join(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		l.cut()
		running.Wait()
	})
	return l
}

func (l *line) join(near net.Conn) {
	defer func() { _ = near.Close() }()
	far, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	l.mu.Lock()
	l.conns = append(l.conns, near, far)
	l.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(far, near)
		_ = far.Close()
	}()
	_, _ = io.Copy(near, far)
	_ = near.Close()
	<-done
}

// cut ends all connections there are.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
}
