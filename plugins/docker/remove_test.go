package docker

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

// removing simulates a Docker host without sockets that is still removing a container for another process.
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
	return said(request, status, text), nil
}

// A container that a killed driver had begun to remove counts as removed once it is gone.
func TestDockerHost_RemoveWaitsForConcurrentRemoval(t *testing.T) {
	t.Parallel()
	for left, want := range map[int]string{3: "<nil>", 1 << 30: "already in progress"} {
		synctest.Test(t, func(t *testing.T) {
			if got := fmt.Sprint(standIn(t, &removing{left}).remove(t.Context(), "i", true)); !strings.Contains(got,
				want) {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}
