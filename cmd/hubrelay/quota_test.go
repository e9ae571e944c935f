package main_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// A key that publishes as fast as it can, on two nodes, gets its quota and no more. Meanwhile another key publishes.
func TestQuota_HostileKeyCannotExceedIt(t *testing.T) {
	t.Parallel()
	const (
		rate   = 100
		burst  = 1
		target = 300
		victim = "victim-0123456789"
	)
	server := redistest.Start(t)
	config := daemonConfig{
		redis: fmt.Sprintf("url: %q", server.URL()),
		keys: fmt.Sprintf("    - {name: victim, key: %s, account_id: other, hubs: [hub-2], "+
			"capabilities: [notifications-publish]}\n", victim),
		env: []string{
			fmt.Sprintf("HUBRELAY_QUOTAS__KEY__NOTIFICATIONS=%d", rate),
			fmt.Sprintf("HUBRELAY_QUOTAS__KEY__BURST=%ds", burst),
		},
	}
	nodes := []*daemon{serve(t, config), serve(t, config)}
	var accepted, rejected atomic.Int64
	var attackers sync.WaitGroup
	start := time.Now()
	enough := func() bool {
		return accepted.Load() >= target && rejected.Load() > 0 || t.Failed() || time.Since(start) > patience
	}
	for _, node := range nodes {
		for range 4 {
			attackers.Go(func() {
				for !enough() {
					r, err := node.Try(t.Context(), testkit.Request{
						Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: "application/x-ndjson", Body: lines(1),
					})
					switch {
					case err != nil:
						t.Error(err)
						return
					case r.Status == http.StatusAccepted:
						accepted.Add(1)
					case r.Status == http.StatusTooManyRequests && r.Header.Get("Retry-After") != "" &&
						strings.Contains(r.Body, "429.rate-limiting"):
						rejected.Add(1)
					default:
						t.Errorf("got %d %s", r.Status, r.Body)
						return
					}
				}
			})
		}
	}
	for !enough() {
		r := nodes[0].Do(t, testkit.Request{
			Method: "POST", Key: victim, Hub: "hub-2", ContentType: "application/x-ndjson", Body: lines(1),
		})
		if r.Status != http.StatusAccepted {
			t.Fatalf("the victim got %d %s", r.Status, r.Body)
		}
		time.Sleep(100 * time.Millisecond)
	}
	attackers.Wait()
	elapsed := time.Since(start).Seconds()
	if most := int64((elapsed + burst) * rate * 1.05); accepted.Load() > most {
		t.Errorf("%d were accepted in %.1f s, want at most %d", accepted.Load(), elapsed, most)
	}
	if accepted.Load() < target || rejected.Load() == 0 {
		t.Errorf("%d were accepted and %d rejected in %.1f s", accepted.Load(), rejected.Load(), elapsed)
	}
	const name = `hubrelay_quota_rejections_total{operation="publish",quota="key"}`
	if got := nodes[0].Metric(t, name) + nodes[1].Metric(t, name); int64(got) != rejected.Load() {
		t.Errorf("%s is %v, want %d", name, got, rejected.Load())
	}
}
