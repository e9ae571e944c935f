package httpserver

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// An address has a limited number of HTTP/2 requests in progress. Event streams do not count.
func TestRequests_LimitPerAddress(t *testing.T) {
	t.Parallel()
	proceed := make(chan struct{})
	var running sync.WaitGroup
	began := make(chan struct{}, 2*maxGroupRequests)
	s := run(t, Options{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			BeginStream(r)
		}
		began <- struct{}{}
		<-proceed
		_, _ = io.WriteString(w, "ok")
	})})
	get := func(client *http.Client, path string) (int, string) {
		res, err := client.Get("http://" + s.Addr().String() + path)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		return res.StatusCode, string(body)
	}
	newClient := func() *http.Client {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	fill := func(path string, n int) {
		for range n / maxStreams {
			client := newClient()
			for range maxStreams {
				running.Go(func() {
					if status, _ := get(client, path); status != http.StatusOK {
						t.Errorf("got status %d for %s, want 200", status, path)
					}
				})
			}
		}
		for range n {
			<-began
		}
	}
	fill("/stream", maxStreams)
	fill("/", maxGroupRequests)
	client := newClient()
	if status, body := get(client, "/"); status != http.StatusServiceUnavailable || body != "" {
		t.Errorf("got %d %q beyond the limit, want 503 without a body", status, body)
	}
	close(proceed)
	running.Wait()
	testkit.Eventually(t, "room for another request", func() error {
		if status, _ := get(client, "/"); status != http.StatusOK {
			return errors.New("rejected")
		}
		return nil
	})
}
