package publicapi

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/module"
)

// fakeJobs is a module with the routes of migrations. It has only the instance c/i.
type fakeJobs struct {
	notReady *relay.Error
	got      []module.PublicRequest
}

const testTasksPattern = "/v1/containers/{container_id}/instances/{instance_id}/tasks"

func (f *fakeJobs) routes() []module.PublicRoute {
	checkReady := func() *relay.Error { return f.notReady }
	return []module.PublicRoute{
		{
			Pattern: testTasksPattern, Method: "GET", Status: 200, HubPurpose: "the hub to look in",
			CheckReady: checkReady,
			Handle: func(_ context.Context, r module.PublicRequest) (any, error) {
				return []relay.TaskDescriptor{}, f.record(r)
			},
		},
		{
			Pattern: testTasksPattern, Method: "POST", Capability: auth.CapabilityMigrate, Status: 202, MaxBody: 1000,
			HubPurpose: "the hub of the instance", CheckReady: checkReady,
			Handle: func(_ context.Context, r module.PublicRequest) (any, error) {
				return relay.TaskDescriptor{Action: "migrate", JobID: "j"}, f.record(r)
			},
		},
		{
			Pattern: "/v1/jobs/{job_id}", Method: "GET", Status: 200, HubPurpose: "the hub to look in",
			CheckReady: checkReady,
			Handle: func(_ context.Context, r module.PublicRequest) (any, error) {
				return relay.Job{ID: r.Params[0], Tasks: []relay.JobTask{}}, nil
			},
		},
	}
}

func (f *fakeJobs) record(r module.PublicRequest) error {
	r.Body = bytes.Clone(r.Body)
	f.got = append(f.got, r)
	if r.Params[0] != "c" || r.Params[1] != "i" {
		return relay.NewError(relay.CodeNoInstance, strings.Join(r.Params, " "))
	}
	return nil
}

func TestAPI_ModuleRoutes(t *testing.T) {
	t.Parallel()
	jobs := &fakeJobs{}
	f := newFixture(t, func(o *Options) { o.Routes = jobs.routes() }, nil)
	disabled := &fakeJobs{notReady: relay.NewError(relay.CodeNotEnabled, "no driver")}
	none := newFixture(t, func(o *Options) { o.Routes = disabled.routes() }, nil)
	const tasks = "/v1/containers/c/instances/i/tasks"
	hub := []string{"X-Hub-Id", "h1"}
	for _, tt := range []struct {
		name, method, path, key string
		headers                 []string
		status                  int
		want                    string // the body, or a part of it
	}{
		{"migrate", "POST", tasks, "one", hub, 202, `{"data":{"action":"migrate","job_id":"j"}}`},
		{"list", "GET", tasks, "other", hub, 200, `{"data":[]}`},
		{"show", "GET", "/v1/jobs/j", "other", hub, 200, `{"data":{"id":"j",`},
		{"look only", "HEAD", tasks, "other", hub, 200, ""},
		{"no key", "POST", tasks, "", hub, 401, "401.auth-invalid"},
		{"expired key", "GET", tasks, "old", hub, 401, "401.auth-expired"},
		{"no capability", "POST", tasks, "other", hub, 403, `"capability":"containers-instances-migrate"`},
		{"no hub", "POST", tasks, "one", nil, 422, "422.missing-argument"},
		{"no hub to list", "GET", tasks, "one", nil, 422, "422.missing-argument"},
		{"no hub to show", "GET", "/v1/jobs/j", "one", nil, 422, "422.missing-argument"},
		{"hub of others", "POST", tasks, "one", []string{"X-Hub-Id", "h2"}, 403, "403.wrong-hub"},
		{"hub of others to show", "GET", "/v1/jobs/j", "one", []string{"X-Hub-Id", "h2"}, 403, "403.wrong-hub"},
		{
			"compressed", "POST", tasks, "one", append([]string{"Content-Encoding", "gzip"}, hub...), 415,
			"415.invalid-content-type",
		},
		{
			"two idempotency keys", "POST", tasks, "one",
			append([]string{"Idempotency-Key", "a", "Idempotency-Key", "b"}, hub...), 422, "Idempotency-Key",
		},
		{"an id with a slash", "POST", "/v1/containers/c%2Fi/instances/i/tasks", "one", hub, 404, "404.instance"},
		{"an id that climbs", "GET", "/v1/containers/..%2F..%2Fx/instances/i/tasks", "one", hub, 404, "404.instance"},
		{"an id of dots", "GET", "/v1/containers/c/instances/../tasks", "one", hub, 404, "404.instance"},
		{"an id of nothing", "GET", "/v1/containers//instances/i/tasks", "one", hub, 404, "404.uri"},
		{"more behind it", "GET", tasks + "/", "one", hub, 404, "404.uri"},
		{
			"10 kB", "GET", "/v1/containers/" + strings.Repeat("c", 10<<10) + "/instances/i/tasks", "one", hub, 404,
			"404.instance",
		},
		{"another method", "DELETE", tasks, "one", hub, 405, "405.method"},
		{"another method of a job", "POST", "/v1/jobs/j", "one", hub, 405, "405.method"},
	} {
		headers := tt.headers
		if tt.key != "" {
			headers = append([]string{"Authorization", "Bearer " + tt.key}, headers...)
		}
		a := f.do(tt.method, tt.path, map[string]string{"POST": "{}"}[tt.method], headers...)
		if a.status != tt.status || !strings.Contains(string(a.body), tt.want) {
			t.Errorf("%s: %d %s", tt.name, a.status, a.body)
		}
		if a := none.do(tt.method, tt.path, "", headers...); tt.status/100 == 2 && a.status != 503 {
			t.Errorf("%s without a driver: %d %s", tt.name, a.status, a.body)
		}
	}
	first := jobs.got[0]
	if c := first.Caller; c.KeyName != "one" || c.Hub != "h1" || string(first.Body) != "{}" || !c.Sees("acme") ||
		!c.Sees("") || c.Sees("other") {
		t.Errorf("the module got %+v", first)
	}
	if len(disabled.got) != 0 {
		t.Errorf("the disabled module got %+v", disabled.got)
	}
	if a := f.do("OPTIONS", tasks, ""); a.status != 204 || a.header.Get("Allow") != "GET, HEAD, POST, OPTIONS" {
		t.Errorf("OPTIONS: %d %v", a.status, a.header)
	}
}
