//go:build unix

package testkit

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
)

// Daemon is a process that runs hubrelay serve.
type Daemon struct {
	*Process
	Public string // address of the public listener, set by Serving
	Health string // address of the health listener, set by Serving
	Admin  string // path of the admin socket or address of the admin listener, set by Serving
	Key    string // API key with which Publish publishes
}

// Serve starts a daemon and waits until it serves, which it may do before it is ready. When the test ends, the daemon
// must end with status 0 after SIGTERM. c is the complete command, including serve and its arguments.
func Serve(t testing.TB, c Command) *Daemon {
	t.Helper()
	d := &Daemon{Process: Start(t, c)}
	t.Cleanup(func() {
		if !t.Failed() {
			d.Stop(t)
		}
	})
	d.Await(t)
	return d
}

// Await waits until the daemon serves. It fails the test if the daemon ends first.
func (d *Daemon) Await(t testing.TB) {
	t.Helper()
	Eventually(t, "the daemon to serve", func() error {
		select {
		case <-d.Done():
			t.Fatalf("serve ended with %d:\n%s", d.Cmd.ProcessState.ExitCode(), d.Err)
		default:
		}
		return d.Serving()
	})
}

// Do sends a request to the public listener. It fails the test if there is no response.
func (d *Daemon) Do(t testing.TB, r Request) Reply {
	t.Helper()
	reply, err := d.Try(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// Try sends a request to the public listener.
func (d *Daemon) Try(ctx context.Context, r Request) (Reply, error) {
	return r.send(ctx, http.DefaultClient, d.Public)
}

// Publish publishes notifications with d.Key and returns their IDs. It fails the test if the daemon rejects them.
func (d *Daemon) Publish(t testing.TB, hub, contentType, body string, header map[string]string) []string {
	t.Helper()
	r := d.Do(t, Request{Method: "POST", Key: d.Key, Hub: hub, ContentType: contentType, Body: body, Header: header})
	var answer struct{ Data struct{ IDs []string } }
	if err := json.Unmarshal([]byte(r.Body), &answer); r.Status != http.StatusAccepted || err != nil {
		t.Fatalf("got %d %s for a publish request, want 202", r.Status, r.Body)
	}
	return answer.Data.IDs
}

// Token returns a token for the stream of a hub.
func (d *Daemon) Token(t testing.TB, key, hub string) string {
	t.Helper()
	r := d.Do(t, Request{Method: "GET", Key: key, Hub: hub})
	var answer struct{ Data struct{ Token string } }
	err := json.Unmarshal([]byte(r.Body), &answer)
	if r.Status != http.StatusOK || err != nil || answer.Data.Token == "" {
		t.Fatalf("got %d %s for a token request, want a token", r.Status, r.Body)
	}
	return answer.Data.Token
}
