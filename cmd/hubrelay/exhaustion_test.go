package main_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestConnections_IdleOnesDoNotExhaustTheRelay opens more connections than the relay has file descriptors. It still
// answers probes, delivers webhooks, and serves old and new clients.
func TestConnections_IdleOnesDoNotExhaustTheRelay(t *testing.T) {
	t.Parallel()
	const files, attackers = 1024, 1100
	hooks := receive(t, nil)
	file := writeFile(t, tempDir(t), "hubrelay.yaml", daemonConfig{
		redis: `url: "memory:"`, sinks: webhookSink("hook", hooks.url+"/", ""),
	}.renderYAML())
	limited := command(t, filepath.Dir(file), nil, "-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, files), binary(t),
		"serve", "-c", file)
	limited.Path = "/bin/sh"
	d := &daemon{testkit.Serve(t, limited)}
	d.Key = opsKey
	ws := d.connect(t, opsKey, "hub-1", "")

	const (
		answered     = "GET /openapi.yaml HTTP/1.1\r\nHost: relay\r\n\r\n" // and the connection is kept alive
		slowHeader   = "GET /openapi.yaml HTTP/1.1\r\nHost: "
		unreadBody   = "POST " + notificationsPath + " HTTP/1.1\r\nHost: relay\r\nContent-Length: 1000\r\n\r\n{"
		requestKinds = 4
	)
	for i := range attackers {
		openIdle(t, d.Public, []string{answered, slowHeader, unreadBody, ""}[i%requestKinds], i%requestKinds == 0)
	}
	for i := range 100 {
		openIdle(t, d.Health, []string{"", "GET /metrics HTTP/1.1\r\nHost: " + d.Health + "\r\nContent-Length: 1000\r\n\r\n"}[i%2], false)
	}
	testkit.Eventually(t, "readiness", d.Ready(http.StatusOK))
	testkit.Eventually(t, "metrics", getOK("http://"+d.Health+"/metrics", ""))
	// Idle connections made room for all new ones. On a slow machine, some ended before at their timeout.
	if got := d.Metric(t, `hubrelay_listener_connections_rejected_total{limit="total",listener="server"}`); got != 0 {
		t.Errorf("%v connections were rejected, want none", got)
	}
	if got := d.Metric(t, `hubrelay_listener_connections{listener="server"}`); got > files-128 {
		t.Errorf("%v connections are open, want at most %d", got, files-128)
	}

	ids := d.Publish(t, "hub-1", "application/json", plain, nil)
	testkit.Eventually(t, "the webhook", hooks.receivedAll(ids))
	ws.wait(t, 1)
	late := d.connect(t, opsKey, "hub-1", "")
	d.Publish(t, "hub-1", "application/json", plain, nil)
	late.wait(t, 1)
}

// Clients without credentials do not lock operators out with requests that never end.
func TestConnections_UnfinishedRequestsDoNotLockOperatorsOut(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`, sinks: consoleTokens})
	host := "Host: " + d.Admin + "\r\nContent-Length: 1000\r\n\r\n{"
	for i := range 120 {
		openIdle(t, d.Admin, []string{
			"POST " + adminapi.SessionPath + " HTTP/1.1\r\nContent-Type: application/json\r\n" + host,
			"POST /api/streams/explain HTTP/1.1\r\n" + host,
			"GET / HTTP/1.1\r\n" + host,
		}[i%3], false)
	}
	// While all of them arrive at once, none is known to be unfinished.
	testkit.Eventually(t, "an operator", getOK("http://"+d.Admin+"/api/status", adminToken))
}

// getOK returns a function that gets a URL. Its error is nil if the status is 200.
func getOK(url, token string) func() error {
	return func() error {
		r, err := http.NewRequest(http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: got status %d", url, response.StatusCode)
		}
		return nil
	}
}

// openIdle opens a connection until the test ends, and sends a request or a part of one. The relay may close it.
func openIdle(t *testing.T, address, request string, complete bool) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	if !complete {
		return
	}
	if _, err := conn.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
}
