//go:build unix

package testkit

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// This file contains all helpers that connect to the health and admin listeners.

// HealthConfig is the line of a configuration that lets the daemon choose the port of its health listener.
const HealthConfig = `health: {listen: "127.0.0.1:0"}`

// Serving stores the addresses that the daemon has logged. It returns an error if the daemon has not logged them yet.
func (d *Daemon) Serving() error {
	for line := range strings.Lines(d.Err.String()) {
		var record struct {
			Msg    string
			Public string `json:"public_addr"`
			Health string `json:"health_addr"`
			Admin  string `json:"admin_addr"`
		}
		if json.Unmarshal([]byte(line), &record) == nil && record.Msg == "serving" {
			d.Public, d.Health, d.Admin = record.Public, record.Health, record.Admin
			return nil
		}
	}
	return fmt.Errorf("the daemon has not logged its addresses:\n%s", d.Err.Tail(tailBytes))
}

// GetAdmin requests a path of the admin socket, such as "/api/sinks".
func (d *Daemon) GetAdmin(ctx context.Context, path string) (Reply, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", d.Admin)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dial}
	return Request{Method: "GET", Path: path}.send(ctx, &http.Client{Transport: transport}, "localhost")
}

// GetHealth requests /healthz, /readyz or /metrics.
func (d *Daemon) GetHealth(ctx context.Context, path string) (Reply, error) {
	return Request{Method: "GET", Path: path}.send(ctx, http.DefaultClient, d.Health)
}

// Ready is a probe for Eventually. It succeeds when /readyz answers with a status.
func (d *Daemon) Ready(status int) func() error {
	return func() error {
		r, err := d.GetHealth(context.Background(), "/readyz")
		if err == nil && r.Status != status {
			err = fmt.Errorf("got status %d from readyz, want %d", r.Status, status)
		}
		return err
	}
}

// Metrics returns the text of /metrics.
func (d *Daemon) Metrics(t testing.TB) string {
	t.Helper()
	r, err := d.GetHealth(t.Context(), "/metrics")
	if err != nil || r.Status != http.StatusOK {
		t.Fatalf("metrics: %d %v", r.Status, err)
	}
	return r.Body
}

// Metric returns the value of a metric, or 0 if the metric is missing. name includes the labels.
func (d *Daemon) Metric(t testing.TB, name string) float64 {
	t.Helper()
	value, _ := d.FindMetric(t, name)
	return value
}

// FindMetric returns the value of a metric and whether the metric exists. name includes the labels.
func (d *Daemon) FindMetric(t testing.TB, name string) (value float64, ok bool) {
	t.Helper()
	for line := range strings.Lines(d.Metrics(t)) {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), name+" ")
		if !ok {
			continue
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		return value, true
	}
	return 0, false
}
