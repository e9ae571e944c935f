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

// standIn is a Docker host that answers without sockets, as synctest wants it.
func standIn(t *testing.T, answers http.RoundTripper) *dockerHost {
	t.Helper()
	api, err := client.New(client.WithHost("tcp://127.0.0.1:1"), client.WithAPIVersion(client.MaxAPIVersion),
		client.WithHTTPClient(&http.Client{Transport: answers}))
	if err != nil {
		t.Fatal(err)
	}
	return &dockerHost{server: "b", client: api}
}

// said is an answer of one.
func said(r *http.Request, status int, text string) *http.Response {
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(text)), Request: r,
	}
}

// answers simulates a Docker host without sockets. It returns these states of a container one after the other.
type answers struct {
	states []string
	asked  int
	delay  func(asked int) // delay before the answer
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	state := a.states[min(a.asked, len(a.states)-1)]
	a.asked++
	a.delay(a.asked)
	return said(r, http.StatusOK, `{"State":`+state+`,"Config":{},"HostConfig":{}}`), nil
}

// An answer describes the time of its request, however late the driver reads it.
func TestWaitHealthy_UsesTimeOfRequest(t *testing.T) {
	t.Parallel()
	const starting = `{"Running":true,"Health":{"Status":"starting"}}`
	for name, c := range map[string]struct {
		states []string
		want   string
	}{
		"ended meanwhile": {
			[]string{`{"Running":true}`, `{"Running":true}`, `{"Running":false,"ExitCode":3}`},
			"the instance does not stay up on server b: its command has ended with status 3",
		},
		"healthy meanwhile": {[]string{starting, starting, `{"Running":true,"Health":{"Status":"healthy"}}`}, "<nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				config := DefaultConfig()
				config.HealthTimeout = Duration(time.Minute)
				docker := &answers{states: c.states, delay: func(asked int) {
					if asked == 2 {
						time.Sleep(time.Duration(config.HealthTimeout))
					}
				}}
				v := &migration{config: config, destination: standIn(t, docker)}
				if got := fmt.Sprint(v.waitHealthy(t.Context(), "i")); got != c.want {
					t.Errorf("%s, behind %d answers", got, docker.asked)
				}
			})
		})
	}
}
