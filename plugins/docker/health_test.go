package docker

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moby/moby/client"
)

// newFakeHost returns a Docker host without sockets, because synctest does not support them. responses simulates
// Docker.
func newFakeHost(t *testing.T, responses http.RoundTripper) *dockerHost {
	t.Helper()
	api, err := client.New(client.WithHost("tcp://127.0.0.1:1"), client.WithAPIVersion(client.MaxAPIVersion),
		client.WithHTTPClient(&http.Client{Transport: responses}))
	if err != nil {
		t.Fatal(err)
	}
	return &dockerHost{server: "b", client: api}
}

// newResponse returns a JSON response to r.
func newResponse(r *http.Request, status int, text string) *http.Response {
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(text)), Request: r,
	}
}

// stateSequence simulates a Docker host that returns these states of a container one after the other.
type stateSequence struct {
	states   []string
	requests int
	delay    func(requests int) // called before each response
}

func (s *stateSequence) RoundTrip(r *http.Request) (*http.Response, error) {
	state := s.states[min(s.requests, len(s.states)-1)]
	s.requests++
	s.delay(s.requests)
	return newResponse(r, http.StatusOK, `{"State":`+state+`,"Config":{},"HostConfig":{}}`), nil
}

// A response describes the state at the time of its request, even if it arrives late.
func TestWaitHealthy_UsesTimeOfRequest(t *testing.T) {
	t.Parallel()
	const starting = `{"Running":true,"Health":{"Status":"starting"}}`
	for name, c := range map[string]struct {
		states []string
		want   string
	}{
		"ended during the request": {
			[]string{`{"Running":true}`, `{"Running":true}`, `{"Running":false,"ExitCode":3}`},
			"the instance did not stay up on server b: its command ended with status 3",
		},
		"healthy after the request": {
			[]string{starting, starting, `{"Running":true,"Health":{"Status":"healthy"}}`}, "<nil>",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				config := DefaultConfig()
				config.HealthTimeout = Duration(time.Minute)
				docker := &stateSequence{states: c.states, delay: func(requests int) {
					if requests == 2 {
						time.Sleep(time.Duration(config.HealthTimeout))
					}
				}}
				v := &migration{config: config, destination: newFakeHost(t, docker)}
				if got := fmt.Sprint(v.waitHealthy(t.Context(), "i")); got != c.want {
					t.Errorf("got %s after %d requests, want %s", got, docker.requests, c.want)
				}
			})
		})
	}
}
