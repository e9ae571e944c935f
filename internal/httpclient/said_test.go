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

// What everybody meets is said in plain words, which a word of the URL does not hide, and is still known for what it is.
func TestPlainErrors(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/answer" {
			<-r.Context().Done()
			return
		}
		panic(http.ErrAbortHandler) // breaks the connection off
	}))
	defer server.Close()
	client := NewClient(local(t), nil)
	defer client.Close()
	late := fmt.Errorf("no answer within 1s: %w", context.DeadlineExceeded)
	for _, c := range []struct {
		path  string
		cause error
		is    error
		want  string
	}{
		{"/answer", nil, context.DeadlineExceeded, "no answer in time"},
		{"/answer", late, context.DeadlineExceeded, late.Error()},
		{"/connection", nil, io.EOF, "closed the connection without an answer"},
	} {
		target, err := ParseTarget(server.URL+c.path, local(t))
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
		if want := "post to " + target.Host() + ": " + c.want; err == nil || err.Error() != want || !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %s", c.path, err, want)
		}
	}
}
