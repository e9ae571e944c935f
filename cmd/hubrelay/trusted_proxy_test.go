//go:build linux

package main_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// startNginx starts nginx with the stock setting for proxies and returns its address.
func startNginx(t *testing.T, upstream string) string {
	t.Helper()
	program, err := exec.LookPath("nginx")
	if err != nil {
		program = "/usr/sbin/nginx"
	}
	dir, addr := tempDir(t), "127.0.0.1:"+redistest.FreePort(t)
	config := writeFile(t, dir, "nginx.conf", fmt.Sprintf(`
daemon off;
pid %[1]s/nginx.pid;
error_log stderr;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  server {
    listen %[2]s;
    location / {
      proxy_pass http://%[3]s;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }
  }
}
`, dir, addr, upstream))
	testkit.Start(t, testkit.Command{
		Path: program, Args: []string{"-p", dir, "-c", config, "-e", filepath.Join(dir, "error.log")},
	})
	testkit.Eventually(t, "nginx to accept connections", func() error {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return addr
}

// Behind a stock nginx, a client cannot choose its address: neither for networks, nor for quotas, nor in the audit log.
func TestTrustedProxies_Nginx(t *testing.T) {
	t.Parallel()
	const (
		client = "127.0.0.2" // nginx connects from 127.0.0.1
		forged = "203.0.113.9"
		near   = "near-secret-0123456789"
		far    = "far-secret-0123456789"
	)
	server := redistest.Start(t)
	log := filepath.Join(tempDir(t), "audit.log")
	d := serve(t, daemonConfig{
		server: `, trusted_proxies: ["127.0.0.1"]`,
		redis:  fmt.Sprintf("url: %q", server.URL()),
		keys: fmt.Sprintf("    - {name: near, key: %s, hubs: [hub-1], networks: [%s], "+
			"capabilities: [notifications-publish]}\n"+
			"    - {name: far, key: %s, hubs: [hub-1], networks: [203.0.113.0/24]}\n", near, client, far),
		env: []string{
			"HUBRELAY_AUDIT__FILE=" + log, "HUBRELAY_QUOTAS__IP__NOTIFICATIONS=1", "HUBRELAY_QUOTAS__IP__BURST=1m",
		},
	})
	addr := startNginx(t, d.Public)
	transport := &http.Transport{
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}).DialContext,
	}
	t.Cleanup(transport.CloseIdleConnections)
	send := func(method, key, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+notificationsPath, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{
			"Authorization": "Bearer " + key, "X-Hub-Id": "hub-1", "Content-Type": "application/json",
			"Forwarded": "for=" + forged, "X-Forwarded-For": forged, "X-Real-IP": forged,
		} {
			req.Header.Set(name, value)
		}
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := testkit.ReadReply(res)
		if err != nil {
			t.Fatal(err)
		}
		return reply.Status, reply.Body
	}
	if status, body := send("GET", near, ""); status != http.StatusOK {
		t.Errorf("the key for the real address: got %d %s, want 200", status, body)
	}
	if status, body := send("GET", far, ""); status != http.StatusUnauthorized {
		t.Errorf("the key for the forged address: got %d %s, want 401", status, body)
	}
	// The quota of addresses does not apply to loopback, the real address. It would to the forged one.
	for range 2 {
		if status, body := send("POST", near, "["+strings.TrimSuffix(strings.Repeat(plain+",", 50), ",")+"]"); status !=
			http.StatusAccepted {
			t.Errorf("publish: got %d %s, want 202", status, body)
		}
	}
	testkit.Eventually(t, "the failed authentication in the audit log", func() error {
		text, err := os.ReadFile(log)
		if err == nil && !strings.Contains(string(text), `"authenticate"`) {
			err = fmt.Errorf("got %s", text)
		}
		if strings.Contains(string(text), forged) || err == nil && !strings.Contains(string(text), client) {
			t.Fatalf("got %s, want the address %s and not %s", text, client, forged)
		}
		return err
	})
}
