package adminserver_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"

	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
)

func ExampleHealth() {
	h := adminserver.NewHealth(adminserver.HealthOptions{
		Metrics: metrics.New("v1.0.0"), Listen: "127.0.0.1:9090",
	})
	h.SetReady(func(context.Context) error { return errors.New("redis does not respond") })
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1:9090/readyz", nil))
	fmt.Print(w.Code, " ", w.Body)
	// Output: 503 {"status":"not ready","reason":"redis does not respond"}
}
