package httpclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// Common errors have a clear text, even if the URL contains a word of it. errors.Is still matches the original error.
func TestClientPost_CommonErrors(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/answer" {
			<-r.Context().Done()
			return
		}
		panic(http.ErrAbortHandler) // closes the connection without a response
	}))
	defer server.Close()
	client := NewClient(localGuard(t), nil)
	defer client.Close()
	timeoutCause := fmt.Errorf("no answer within 1s: %w", context.DeadlineExceeded)
	for _, c := range []struct {
		path  string
		cause error
		is    error
		want  string
	}{
		{"/answer", nil, context.DeadlineExceeded, "no response in time"},
		{"/answer", timeoutCause, context.DeadlineExceeded, timeoutCause.Error()},
		{"/connection", nil, io.EOF, "closed the connection without a response"},
	} {
		target, err := ParseTarget(server.URL+c.path, localGuard(t))
		if err != nil {
			t.Fatal(err)
		}
		wait := time.Minute
		if errors.Is(c.is, context.DeadlineExceeded) {
			wait = 100 * time.Millisecond
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), wait, c.cause)
		_, err = client.Post(ctx, target, nil, []byte("{}"))
		cancel()
		want := "post to " + target.Host() + ": " + c.want
		if err == nil || err.Error() != want || !errors.Is(err, c.is) {
			t.Errorf("%s: got error %v, want %s", c.path, err, want)
		}
	}
}
