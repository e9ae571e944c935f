package docker

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

// pendingRemoval simulates a Docker host that is removing a container for another process. left is the number of
// requests until the container is gone.
type pendingRemoval struct{ left int }

func (r *pendingRemoval) RoundTrip(request *http.Request) (*http.Response, error) {
	status, text := http.StatusOK, `{}`
	switch {
	case request.Method == http.MethodDelete:
		status, text = http.StatusConflict, `{"message":"removal of container i is already in progress"}`
	case r.left == 0:
		status, text = http.StatusNotFound, `{"message":"No such container: i"}`
	default:
		r.left--
	}
	return newResponse(request, status, text), nil
}

// remove waits for a removal that another driver has started, and succeeds when the container is gone.
func TestDockerHost_RemoveWaitsForConcurrentRemoval(t *testing.T) {
	t.Parallel()
	for left, want := range map[int]string{3: "<nil>", 1 << 30: "already in progress"} {
		synctest.Test(t, func(t *testing.T) {
			h := newFakeHost(t, &pendingRemoval{left})
			if got := fmt.Sprint(h.remove(t.Context(), "i", true)); !strings.Contains(got, want) {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}
