package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"

	"github.com/hubrelay/hubrelay/relay/admin"
)

func ExampleHealth() {
	h := admin.NewHealth(admin.HealthOptions{
		Metrics: admin.NewMetrics("v1.0.0"), Listen: "127.0.0.1:9090",
		Ready: func(context.Context) error { return errors.New("redis does not answer") },
	})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1:9090/readyz", nil))
	fmt.Print(w.Code, " ", w.Body)
	// Output: 503 {"status":"not ready","reason":"redis does not answer"}
}
