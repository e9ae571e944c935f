package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

// A proxy that knows no websockets, and now and then has enough of us, does not end the wait for a job.
func TestJobIsFollowedWithoutThePipeline(t *testing.T) {
	t.Parallel()
	var looks atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasPrefix(r.URL.Path, "/v1/jobs/") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		switch looks.Add(1) {
		case 1:
			_, _ = fmt.Fprint(w, `{"data":{"id":"j","state":{"current":"running"}}}`)
		case 2:
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			_, _ = fmt.Fprint(w, `{"data":{"id":"j","state":{"current":"completed"}}}`)
		}
	}))
	t.Cleanup(server.Close)
	j, err := followJob(t.Context(), &client.Client{URL: server.URL, Key: "k", Hub: "h"}, "j", func(relay.Job) {})
	if err != nil || j.State.Current != relay.JobCompleted {
		t.Errorf("%+v, %v", j, err)
	}
}

// A key that may not look at the job ends it at once.
func TestJobThatMayNotBeSeen(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(server.Close)
	if _, err := followJob(t.Context(), &client.Client{URL: server.URL, Key: "k", Hub: "h"}, "j", func(relay.Job) {}); !refused(err) {
		t.Error(err)
	}
}
