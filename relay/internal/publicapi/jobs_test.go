package publicapi

import (
	"context"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/migration"
)

// fakeMigrations records its requests. It has only the instance c/i and the job j.
type fakeMigrations struct{ got []migration.Request }

func (a *fakeMigrations) Migrate(_ context.Context, r migration.Request) (relay.TaskDescriptor, error) {
	r.Body = append([]byte(nil), r.Body...)
	a.got = append(a.got, r)
	return relay.TaskDescriptor{Action: "migrate", JobID: "j"}, a.known(r.Container, r.Instance)
}

func (a *fakeMigrations) known(container, instance string) error {
	if container != "c" || instance != "i" {
		return relay.NewError(relay.CodeNoInstance, container+" "+instance)
	}
	return nil
}

func (a *fakeMigrations) Jobs(
	_ context.Context,
	c migration.Caller,
	container, instance string,
) ([]relay.TaskDescriptor, error) {
	a.got = append(a.got, migration.Request{Caller: c})
	return []relay.TaskDescriptor{}, a.known(container, instance)
}

func (a *fakeMigrations) Job(_ context.Context, c migration.Caller, id string) (relay.Job, error) {
	a.got = append(a.got, migration.Request{Caller: c})
	return relay.Job{ID: id, Tasks: []relay.JobTask{}}, nil
}

func TestMigrations(t *testing.T) {
	t.Parallel()
	stub := &fakeMigrations{}
	f := newFixture(t, func(o *Options) { o.Migrations = stub }, nil)
	none := newFixture(t, nil, nil)
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
	first := stub.got[0]
	if first.KeyName != "one" || first.Hub != "h1" || string(first.Body) != "{}" || !first.Sees("acme") ||
		!first.Sees("") ||
		first.Sees("other") {
		t.Errorf("the service was fakeMigrations %+v", first)
	}
	if a := f.do("OPTIONS", tasks, ""); a.status != 204 || a.header.Get("Allow") != "GET, HEAD, POST, OPTIONS" {
		t.Errorf("OPTIONS: %d %v", a.status, a.header)
	}
}
