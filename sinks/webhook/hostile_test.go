package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// deliverWithin fails the test where an attempt outlives its deadline by far.
func deliverWithin(t *testing.T, s *Sink, deadline time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Deliver(ctx, sinktest.Sample("a")) }()
	select {
	case err := <-done:
		return err
	case <-time.After(deadline + testkit.Patience):
		t.Fatal("the attempt does not end")
		return nil
	}
}

// rawServer answers every connection with the text and keeps it open.
func rawServer(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				_, _ = conn.Read(make([]byte, 64<<10))
				_, _ = io.WriteString(conn, answer)
				<-stop
			})
		}
	})
	return "http://" + l.Addr().String()
}

// The body of a 101 is the bare connection, which no deadline ends.
func TestAnswerThatSwitchesProtocols(t *testing.T) {
	t.Parallel()
	url := rawServer(t, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: anything\r\n\r\n")
	err := deliverWithin(t, openTest(t, &Config{URL: url}), 30*time.Second)
	var answer *relay.ResponseError // means that the receiver speaks HTTP
	if outcome, _ := relay.Classify(err); errors.As(err, &answer) || !strings.Contains(fmt.Sprint(err), "status 101") ||
		outcome != relay.OutcomeRetry {
		t.Errorf("got %v", err)
	}
}

func TestAnswersThatDoNotEnd(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"half a body":        "HTTP/1.1 500 Oops\r\nContent-Length: 100\r\n\r\nhalf",
		"half a success":     "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
		"half a header":      "HTTP/1.1 200 OK\r\nX: ",
		"half a status line": "HTTP/1.",
		"nothing":            "",
		"100 for ever":       strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 10_000),
		"a huge header":      "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := deliverWithin(t, openTest(t, &Config{URL: rawServer(t, answer)}), 3*time.Second)
			if outcome, _ := relay.Classify(err); (outcome == relay.OutcomeDelivered) != (name == "half a success") ||
				outcome == relay.OutcomePermanent {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Silence is said in words of ours, which are shown whatever a secret looks like.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	err := deliverWithin(t, openTest(t, &Config{
		URL: rawServer(t, ""), Headers: map[string]string{"X-Key": "answer"},
	}), time.Second)
	if err == nil || !strings.HasSuffix(err.Error(), ": no response in time") ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// An answer that repeats our secrets, cut in the middle of one or one inside another, shows no part of them.
func TestAnswerThatRepeatsSecrets(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		strings.Repeat("x", 1015) + "s3crettoken",
		strings.Repeat("x", 1010) + "s3crettoken-and-Wh4t-follows",
		strings.Repeat("x", 1020) + "s3cretheader",
		"no Bearer s3crettoken-and-Wh4t-follows, nor s3crettoken",
		strings.Repeat("s3cretheader ", 500),
	} {
		srv, _ := capture(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, body)
		})
		s := openTest(t, &Config{URL: srv.URL + "/s3crettoken", Headers: map[string]string{"X-Key": "s3cretheader"}})
		tokens := []string{"another", "s3crettoken-and-Wh4t-follows"}
		s.bearer = func() string { // its file changes while the request is under way
			token := tokens[len(tokens)-1]
			tokens = tokens[:max(1, len(tokens)-1)]
			return token
		}
		err := s.Deliver(t.Context(), sinktest.Sample("a"))
		var answer *relay.ResponseError
		if !errors.As(err, &answer) || answer.Body == "" || strings.Contains(answer.Body, "s3cr") ||
			strings.Contains(answer.Body, "Wh4t") {
			t.Errorf("%.60s…: the dead letter would show %q", body, answer.Body[max(0, len(answer.Body)-60):])
		}
	}
}

// Errors of a dial are generated on this machine, so paths of common words need not be hidden.
func TestDialErrorsAreShown(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String() + "/connect?refused=dial"
	_ = l.Close()
	err = deliverWithin(t, openTest(t, &Config{URL: url}), 5*time.Second)
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v", err)
	}
	s := openTest(t, &Config{URL: "http://hooks.invalid/hooks"})
	if err := deliverWithin(t, s, time.Minute); err == nil || !strings.Contains(err.Error(), "lookup") {
		t.Errorf("got %v", err)
	}
	echo := openTest(t, &Config{URL: rawServer(t, "HTTP/1.1 s3cretpath\r\n\r\n") + "/s3cretpath"})
	if err := deliverWithin(t, echo, 5*time.Second); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v", err)
	}
}

func mustGuard(t testing.TB, allow ...string) *netguard.Guard {
	t.Helper()
	g, err := netguard.New(allow)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// After a change of url_file, a receiver may repeat the former URL, which may still be valid.
func TestResponse_RedactsFormerURL(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	paths := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths += r.URL.Path + " " + r.Header.Get("Authorization") + " "
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, paths)
	}))
	t.Cleanup(srv.Close)
	login := strings.Replace(srv.URL, "//", "//user:s3cretpassword@", 1)
	s := openTest(t, &Config{URL: login + "/s3cretone"})
	_ = s.Deliver(t.Context(), sampled)
	s.endpoint = openTest(t, &Config{URL: srv.URL + "/s3crettwo"}).endpoint
	err := s.Deliver(t.Context(), sampled)
	var said *relay.ResponseError
	if !errors.As(err, &said) || strings.Count(said.Body, "(redacted)") != 3 || strings.Contains(said.Body, "s3cret") ||
		strings.Contains(said.Body, "czNjcmV0") {
		t.Errorf("got %v, %+v", err, said)
	}
}

// A receiver may close each connection soon after its response, while the next request is on its way. A retry avoids that.
func TestDeliver_RetriesOnNewConnection(t *testing.T) {
	t.Parallel()
	srv, last := capture(t, nil)
	s := openTest(t, &Config{URL: srv.URL})
	var connections []string
	for _, attempt := range []int{1, 1, 2} {
		d := sinktest.Sample("65f0c2a00123456789abcdef")
		d.Attempt = attempt
		if err := s.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		r, _ := last()
		connections = append(connections, r.RemoteAddr)
	}
	if connections[0] != connections[1] || connections[1] == connections[2] {
		t.Errorf("got connections %q, want a new one for the retry only", connections)
	}
}
