package migration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/module"
)

// Operators see and start the jobs of all hubs. A cluster rejects commands across slots.
func TestAdminJobs(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "inventory.yaml")
	if err := os.WriteFile(file, []byte(`clusters: {p: {servers: {a: {}, b: {}}}}
containers:
  c: {hub_id: h, account_id: shop, instances: {i1: {server_id: a}, i2: {server_id: a}}}
  d: {hub_id: other-hub, instances: {i: {server_id: b}}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := NewModule(ModuleOptions{
		InventoryFile: file, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		OpenDriver: func(func(string)) (relay.Driver, error) { return &fakeDriver{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := m.Start(t.Context(), module.Env{
		Redis: newClusterRedis(t), Node: "n", Go: func(string, func(context.Context) error) {},
		NewID: func() string { n++; return fmt.Sprintf("%024x", n) },
	}); err != nil {
		t.Fatal(err)
	}
	a := m.AdminJobs()
	create := func(hub, container, instance, destination string) adminapi.Job {
		t.Helper()
		j, err := a.CreateJob(t.Context(), "admin oncall", adminapi.CreateJobRequest{
			HubID: hub, ContainerID: container, InstanceID: instance, DestinationServerID: destination,
		})
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	first, second, third := create("h", "c", "i1", "b"), create("other-hub", "d", "i", "a"), create("h", "c", "i2", "b")
	if first.State.Current != relay.JobQueued || first.RequestedBy != "admin oncall" || first.AccountID != "shop" ||
		first.SourceServerID != "a" || first.DestinationServerID != "b" || first.HubID != "h" {
		t.Errorf("got %+v", first)
	}
	if shown, err := a.ShowJob(t.Context(), second.ID); err != nil || shown.ContainerID != "d" {
		t.Errorf("show: got %+v, %v", shown, err)
	}
	list := func(r adminapi.ListJobsRequest) (ids []string, next string) {
		t.Helper()
		page, err := a.ListJobs(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page.Data {
			ids = append(ids, j.ID)
		}
		return ids, page.Next
	}
	ids, next := list(adminapi.ListJobsRequest{PageRequest: adminapi.PageRequest{Limit: 2}})
	compare(t, "first page", ids, []string{third.ID, second.ID})
	ids, next = list(adminapi.ListJobsRequest{PageRequest: adminapi.PageRequest{Limit: 2, After: next}})
	compare(t, "second page", ids, []string{first.ID})
	compare(t, "next of the last page", next, "")
	ids, _ = list(adminapi.ListJobsRequest{HubID: "h", ContainerID: "c", InstanceID: "i1", States: []string{"queued,running"}})
	compare(t, "filtered", ids, []string{first.ID})
	ids, _ = list(adminapi.ListJobsRequest{States: []string{"completed"}})
	compare(t, "completed", ids, []string(nil))
	// A job that has not ended is listed even if the newest jobs displaced it.
	store := m.service.store
	partition := store.keys.Partition("h")
	if err := store.client.LRem(t.Context(), store.keys.recentJobs(partition), 0, first.ID).Err(); err != nil {
		t.Fatal(err)
	}
	ids, _ = list(adminapi.ListJobsRequest{})
	compare(t, "an active job that is older than the newest ones", ids, []string{third.ID, second.ID, first.ID})
	for name, tt := range map[string]struct {
		call func() error
		code relay.Code
	}{
		"unknown job": {func() error { _, err := a.ShowJob(t.Context(), "0123"); return err }, relay.CodeNoJob},
		"unknown state": {func() error {
			_, err := a.ListJobs(t.Context(), adminapi.ListJobsRequest{States: []string{"done"}})
			return err
		}, relay.CodeInvalidArgument},
		"limit": {func() error {
			_, err := a.ListJobs(t.Context(), adminapi.ListJobsRequest{PageRequest: adminapi.PageRequest{Limit: 501}})
			return err
		}, relay.CodeInvalidArgument},
		"cursor": {func() error {
			_, err := a.ListJobs(t.Context(), adminapi.ListJobsRequest{PageRequest: adminapi.PageRequest{After: "x"}})
			return err
		}, relay.CodeInvalidArgument},
		"migrating already": {func() error {
			_, err := a.CreateJob(t.Context(), "admin", adminapi.CreateJobRequest{HubID: "h", ContainerID: "c", InstanceID: "i1", DestinationServerID: "b"})
			return err
		}, relay.CodeInvalidState},
		"missing": {
			func() error { _, err := a.CreateJob(t.Context(), "admin", adminapi.CreateJobRequest{}); return err },
			relay.CodeMissingArgument,
		},
		"long destination": {func() error {
			_, err := a.CreateJob(t.Context(), "admin", adminapi.CreateJobRequest{
				HubID: "h", ContainerID: "c", InstanceID: "i1", DestinationServerID: strings.Repeat("s", maxServerID+1),
			})
			return err
		}, relay.CodeInvalidArgument},
		"disabled": {func() error {
			_, err := (&Module{}).AdminJobs().ListJobs(t.Context(), adminapi.ListJobsRequest{})
			return err
		}, relay.CodeNotEnabled},
	} {
		var rejected *relay.Error
		if err := tt.call(); !errors.As(err, &rejected) || rejected.Code != tt.code {
			t.Errorf("%s: got %v, want %s", name, err, tt.code)
		}
	}
}
