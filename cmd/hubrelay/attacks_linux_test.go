package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// The tests in this file attack a whole process and measure its memory, so they run before the parallel tests.

func serveWithoutRace(t *testing.T, c daemonConfig) *daemon {
	t.Helper()
	file := writeFile(t, tempDir(t), "hubrelay.yaml", c.renderYAML())
	run := testkit.Command{
		Path: testkit.BuildWithoutRace(t, "."), Args: []string{"serve", "-c", file}, Dir: filepath.Dir(file),
	}
	d := &daemon{testkit.Serve(t, run)}
	d.Key = opsKey
	return d
}

// newClientElsewhere returns a client with another address than the attacker.
func newClientElsewhere() *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	return &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
}

// http2Attacker is an HTTP/2 client that breaks the rules of polite clients.
type http2Attacker struct {
	conn    net.Conn
	framer  *http2.Framer
	encoder *hpack.Encoder
	header  bytes.Buffer
	stream  uint32
}

func attackHTTP2(address string, settings ...http2.Setting) (*http2Attacker, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	a := &http2Attacker{conn: conn, framer: http2.NewFramer(conn, nil), stream: 1}
	a.encoder = hpack.NewEncoder(&a.header)
	if _, err = io.WriteString(conn, http2.ClientPreface); err == nil {
		err = a.framer.WriteSettings(settings...)
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	return a, err
}

// request starts a GET request and returns its stream.
func (a *http2Attacker) request(path string, header ...string) (uint32, error) {
	a.header.Reset()
	header = append([]string{":method", http.MethodGet, ":scheme", "http", ":authority", "relay", ":path", path}, header...)
	for i := 0; i < len(header); i += 2 {
		if err := a.encoder.WriteField(hpack.HeaderField{Name: header[i], Value: header[i+1]}); err != nil {
			return 0, err
		}
	}
	id := a.stream
	a.stream += 2
	return id, a.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: a.header.Bytes(), EndStream: true, EndHeaders: true,
	})
}

// TestLongAttack_RapidReset resets requests with unknown credentials at once (CVE-2023-44487), on 32 connections. The relay
// bounds its memory, and serves new users from another address.
func TestLongAttack_RapidReset(t *testing.T) {
	const (
		connections = 32
		duration    = 10 * time.Second
		users       = 20
		most        = 64 << 20
	)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var question map[string]string
		_ = json.NewDecoder(r.Body).Decode(&question)
		if !strings.HasPrefix(question["credential"], "user-") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprintf(w, `{"name":%q,"account_id":"acme","hubs":["hub-1"]}`, question["credential"])
	}))
	defer endpoint.Close()
	d := serveWithoutRace(t, daemonConfig{auth: fmt.Sprintf(`forward: {url: %q}`, endpoint.URL)})
	base := peakMemory(t, d.Cmd.Process.Pid)

	var resets atomic.Int64
	var group sync.WaitGroup
	end := time.Now().Add(duration)
	for c := range connections {
		group.Go(func() {
			for n := 0; time.Now().Before(end); {
				a, err := attackHTTP2(d.Public)
				for ; err == nil && time.Now().Before(end); n++ {
					var id uint32
					id, err = a.request(notificationsPath, "x-hub-id", "hub-1", "authorization", fmt.Sprintf("Bearer unknown-%d-%d", c, n))
					if err == nil {
						err = a.framer.WriteRSTStream(id, http2.ErrCodeCancel)
					}
					resets.Add(1)
				}
				if a != nil {
					_ = a.conn.Close()
				}
			}
		})
	}
	testkit.WaitFor(t, "the attack", func() bool { return resets.Load() > 1000 })
	elsewhere := newClientElsewhere()
	var slowest time.Duration
	for i := range users {
		began := time.Now()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+d.Public+notificationsPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Hub-Id", "hub-1")
		req.Header.Set("Authorization", fmt.Sprintf("Bearer user-%d", i))
		res, err := elsewhere.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Errorf("user %d: got status %d, want 200", i, res.StatusCode)
		}
		slowest = max(slowest, time.Since(began))
	}
	group.Wait()
	grown := peakMemory(t, d.Cmd.Process.Pid) - base
	t.Logf("%d resets, %d MiB more memory, slowest of %d new users %v", resets.Load(), grown>>20, users, slowest)
	if grown > most {
		t.Errorf("the relay used %d MiB more than before, want at most %d MiB", grown>>20, most>>20)
	}
}

// TestLongAttack_UnreadResponses sends requests with large headers, which compression makes tiny, on many connections and lets
// the relay send no byte of a response. The relay bounds its memory, and serves another address.
func TestLongAttack_UnreadResponses(t *testing.T) {
	for name, fields := range map[string]int{
		"headers of 13 KB":                       10,
		"headers of 30 KB, rejected by net/http": 23,
	} {
		t.Run(name, func(t *testing.T) { attackWithUnreadResponses(t, fields) })
	}
}

// attackWithUnreadResponses sends requests with a number of header fields of 1,300 bytes.
func attackWithUnreadResponses(t *testing.T, fields int) {
	t.Helper()
	const (
		connections = 400
		streams     = 100
		most        = 512 << 20 // without the limit, 1.5 GiB
	)
	d := serveWithoutRace(t, daemonConfig{})
	base := peakMemory(t, d.Cmd.Process.Pid)
	cookies := slices.Repeat([]string{"cookie", "c=" + strings.Repeat("x", 1300)}, fields)
	elsewhere := newClientElsewhere()
	accepted := 0
	for range connections {
		a, err := attackHTTP2(d.Public, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		if err != nil { // the relay has blocked the address
			break
		}
		accepted++
		t.Cleanup(func() { _ = a.conn.Close() })
		for range streams {
			if _, err := a.request("/openapi.yaml", cookies...); err != nil {
				break
			}
		}
		// The relay answers another address before the next connection, so a busy machine does not queue the attack.
		res, err := elsewhere.Get("http://" + d.Public + "/openapi.yaml")
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Fatalf("another address: got status %d, want 200", res.StatusCode)
		}
	}
	grown := peakMemory(t, d.Cmd.Process.Pid) - base
	t.Logf("%d connections, %d MiB more memory", accepted, grown>>20)
	if grown > most || accepted < 10 {
		t.Errorf("the relay used %d MiB more than before for %d connections, want at most %d MiB", grown>>20, accepted, most>>20)
	}
}

// TestLongAttack_UnfinishedBodies sends 240 bodies of 1 MiB on 8 HTTP/2 connections, without their last byte.
func TestLongAttack_UnfinishedBodies(t *testing.T) {
	const (
		connections = 8
		bodies      = 30 // per connection
		size        = 1<<20 - 1<<10
		most        = 96 << 20
	)
	d := serveWithoutRace(t, daemonConfig{})
	base := peakMemory(t, d.Cmd.Process.Pid)
	var sent atomic.Int64
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range connections {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		for range bodies {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+d.Public+notificationsPath,
				&unfinishedBody{ctx: ctx, left: size, sent: &sent})
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = size + 1
			req.Header = http.Header{"X-Hub-Id": {"hub-1"}, "Authorization": {"Bearer " + opsKey}, "Content-Type": {"application/json"}}
			group.Go(func() {
				if res, err := transport.RoundTrip(req); err == nil {
					_ = res.Body.Close()
				}
			})
		}
	}
	testkit.Eventually(t, "the relay to read no more", func() error {
		now := sent.Load()
		time.Sleep(time.Second)
		if now < 16<<20 || sent.Load() != now {
			return fmt.Errorf("%d MiB were sent, a second before %d MiB", sent.Load()>>20, now>>20)
		}
		return nil
	})
	grown := peakMemory(t, d.Cmd.Process.Pid) - base
	t.Logf("%d MiB sent, %d MiB more memory", sent.Load()>>20, grown>>20)
	if grown > most {
		t.Errorf("the relay used %d MiB more than before, want at most %d MiB", grown>>20, most>>20)
	}
	cancel()
	group.Wait()
	d.Publish(t, "hub-1", "application/json", plain, nil)
}

// unfinishedBody has left bytes. Then it waits for ctx.
type unfinishedBody struct {
	ctx  context.Context
	left int
	sent *atomic.Int64
}

func (b *unfinishedBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		<-b.ctx.Done()
		return 0, b.ctx.Err()
	}
	n := min(len(p), b.left)
	b.left -= n
	b.sent.Add(int64(n))
	clear(p[:n])
	return n, nil
}
