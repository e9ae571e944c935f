package docker

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/moby/moby/client"
)

// removing stands for a Docker host that still removes a container for somebody else, without sockets.
type removing struct{ left int }

func (r *removing) RoundTrip(request *http.Request) (*http.Response, error) {
	status, text := http.StatusOK, `{}`
	switch {
	case request.Method == http.MethodDelete:
		status, text = http.StatusConflict, `{"message":"removal of container i is already in progress"}`
	case r.left == 0:
		status, text = http.StatusNotFound, `{"message":"No such container: i"}`
	default:
		r.left--
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(text)), Request: request}, nil
}

// A container that a killed driver had begun to remove counts as removed once it is gone.
func TestRemovalOfSomebodyElse(t *testing.T) {
	t.Parallel()
	for left, want := range map[int]string{3: "<nil>", 1 << 30: "already in progress"} {
		synctest.Test(t, func(t *testing.T) {
			api, err := client.New(client.WithHost("tcp://127.0.0.1:1"), client.WithAPIVersion(client.MaxAPIVersion), client.WithHTTPClient(&http.Client{Transport: &removing{left}}))
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint((&host{server: "b", api: api}).remove(t.Context(), "i", true)); !strings.Contains(got, want) {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}
