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

// answers stand for a Docker host that says these states of a container one after the other, without sockets.
type answers struct {
	states []string
	asked  int
	delay  func(asked int) // behind which the answer arrives
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	state := a.states[min(a.asked, len(a.states)-1)]
	a.asked++
	a.delay(a.asked)
	body := io.NopCloser(strings.NewReader(`{"State":` + state + `,"Config":{},"HostConfig":{}}`))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r}, nil
}

// What a host has said counts for when it was asked, however long the driver was held up behind that.
func TestHealthOfBefore(t *testing.T) {
	t.Parallel()
	const starting = `{"Running":true,"Health":{"Status":"starting"}}`
	for name, c := range map[string]struct {
		states []string
		want   string
	}{
		"ended meanwhile":   {[]string{`{"Running":true}`, `{"Running":true}`, `{"Running":false,"ExitCode":3}`}, "the instance does not stay up on server b: its command has ended with status 3"},
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
				api, err := client.New(client.WithHost("tcp://127.0.0.1:1"), client.WithAPIVersion(client.MaxAPIVersion), client.WithHTTPClient(&http.Client{Transport: docker}))
				if err != nil {
					t.Fatal(err)
				}
				v := &move{config: config, dst: &host{server: "b", api: api}}
				if got := fmt.Sprint(v.healthy(t.Context(), "i")); got != c.want {
					t.Errorf("%s, behind %d answers", got, docker.asked)
				}
			})
		})
	}
}
