package migration

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/module"
)

// describeError returns the code, the source and the detail of an error.
func describeError(err error) string {
	var e *relay.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	text := string(e.Code)
	if e.Source != "" {
		text += " at " + e.Source
	}
	return text + ": " + e.Detail
}

func TestParseMigrateRequest(t *testing.T) {
	t.Parallel()
	const server = `"destination_server_id":"s2"`
	for body, want := range map[string]string{
		``: "400.invalid-syntax: the body is empty",
		`{`: "400.invalid-syntax: the body is not JSON: unexpected end of JSON " +
			"input at byte 1",
		`migrate`:                "400.invalid-syntax: the body is not JSON",
		`{"action":"migrate"} x`: "400.invalid-syntax: the body is not JSON",
		`[]`:                     "422.invalid-argument: the body must be an object, not an array",
		`null`:                   "422.invalid-argument: the body must be an object, not null",
		`"migrate"`:              "422.invalid-argument: the body must be an object, not a string",
		`{}`:                     "422.missing-argument at /action: action is missing",
		`{"action":null}`:        "422.missing-argument at /action: action is missing",
		`{"action":""}`:          "422.missing-argument at /action: action is empty",
		`{"action":7}`:           "422.invalid-argument at /action: action must be a string, not a number",
		`{"action":"restart"}`: `422.invalid-argument at /action: action "restart" is not ` +
			`supported; the only action is "migrate"`,
		`{"action":"migrate"}`: "422.missing-argument at /value: value is missing",
		`{"acton":"migrate"}`: `422.invalid-argument at /acton: the member "acton" is unknown; ` +
			`did you mean action?`,
		`{"a/b":1}`: `422.invalid-argument at /a~1b: the ` +
			`member "a/b" is unknown`,
		`{"action":"m","action":"migrate"}`: "422.invalid-argument at /action: duplicate member",
		`{"a":[{"b/c":{"d":1,"d":2}}]}`:     "422.invalid-argument at /a/0/b~1c/d: duplicate member",
		strings.Repeat(`{"`+strings.Repeat("a", 90)+`":`, 9990) + `{"b":1,"b":2}` + strings.Repeat("}", 9990): "422.invalid-argument " +
			"at /aaa",
		`{"action":"migrate","value":null}`: "422.invalid-argument at /value: value " +
			"must be an object, not null",
		`{"action":"migrate","value":"s2"}`: "422.invalid-argument at /value: value " +
			"must be an object, not a string",
		`{"action":"migrate","value":{}}`: "422.missing-argument at " +
			"/value/destination_server_id",
		`{"action":"migrate","value":{"destination_server_id":""}}`: "422.missing-argument at " +
			"/value/destination_server_id: destination_server_id is empty",
		`{"action":"migrate","value":{"destination_server_id":["s2"]}}`: "422.invalid-argument at " +
			"/value/destination_server_id: destination_server_id must be a string, not an array",
		`{"action":"migrate","value":{"destination_server_id":"` + strings.Repeat("s", 300) +
			`"}}`: "422.invalid-argument at /value/destination_server_id: destination_server_id has 300 bytes",
		`{"action":"migrate","value":{` + server +
			`,"x":1}}`: `422.invalid-argument at /value/x: the member "x" is unknown`,
		`{"action":"migrate","value":{` + server +
			`,"stateful":true}}`: "422.invalid-argument at /value/stateful: stateful must be an object, not a boolean",
		`{"action":"migrate","value":{` + server +
			`,"stateful":{"copy_volumes":"yes"}}}`: "422.invalid-argument at /value/stateful/copy_volumes: " +
			"copy_volumes must be true or false, not a string",
		`{"action":"migrate","value":{` + server +
			`,"stateful":{"a":1,"a":2}}}`: "422.invalid-argument at /value/stateful/a",
		`{"action":"migrate","value":{` + server +
			`,"stateful":{"b":1e999,"a":1,"a":2}}}`: "422.invalid-argument at /value/stateful/a",
	} {
		_, err := parseMigrateRequest("application/json", []byte(body))
		if err == nil || !strings.HasPrefix(describeError(err), want) {
			t.Errorf("%s:\n got %v\nwant %s", relay.Truncate(body, 120), err, want)
		}
	}
	for body, want := range map[string]migrateRequest{
		`{"action":"migrate","value":{` + server + `,"stateful":{"a":-1e999}}}`: {
			destination: "s2",
		},
		`{"action":"migrate","value":{` + server + `}}`: {
			destination: "s2",
		},
		` {"value":{"stateful":null,` + server + `},"action":"migrate"} `: {
			destination: "s2",
		},
		`{"action":"migrate","value":{` + server + `,"stateful":{"copy_volumes":true}}}`: {
			destination: "s2", copyVolumes: true,
		},
		`{"action":"migrate","value":{` + server + `,"stateful":{"copy_volumes":null,"b":[1],"a":{"c":2}}}}`: {
			destination: "s2",
		},
	} {
		got, err := parseMigrateRequest("application/json; charset=UTF-8", []byte(body))
		if err != nil {
			t.Errorf("%s: %v", body, err)
		}
		compare(t, body, got, want)
	}
	long := strings.Repeat("x", 100<<10)
	if _, err := parseMigrateRequest("application/json", []byte(`{"`+long+`":1,"`+long+`":2}`)); err == nil ||
		len(err.Error()) > 500 {
		t.Error("the pointer of a long member is not truncated")
	}
	for _, kind := range []string{
		"", "text/plain", "application/x-ndjson", "application/json; charset=latin1", "application/json;;",
	} {
		if _, err := parseMigrateRequest(kind, []byte(`{}`)); err == nil || err.Code != relay.CodeInvalidContentType {
			t.Errorf("content type %q: got error %v", kind, err)
		}
	}
}

func FuzzParseMigrateRequest(f *testing.F) {
	f.Add([]byte(`{"action":"migrate","value":{"destination_server_id":"s2","stateful":{"copy_volumes":true}}}`))
	f.Add([]byte(`[[{"a":[]}],"\u0000"]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		in, err := parseMigrateRequest("application/json", body)
		if err == nil && (in.destination == "" || len(in.destination) > maxServerID) {
			t.Errorf("%q: got destination %q", body, in.destination)
		}
	})
}

func TestService_RejectsRequests(t *testing.T) {
	t.Parallel()
	s := newSite(t, newRedis(t))
	for name, c := range map[string]struct {
		change func(*Request)
		to     string
		want   string
	}{
		"unknown container":        {func(r *Request) { r.Container = "c99" }, "s2", "404.container"},
		"container of another hub": {func(r *Request) { r.Container, r.Instance = "x", "y" }, "s2", "404.container"},
		"account of another key": {
			func(r *Request) { r.Sees = func(string) bool { return false } }, "s2", "404.container",
		},
		"account of another key, unknown instance": {
			func(r *Request) { r.Instance, r.Sees = "i99", func(string) bool { return false } }, "s2", "404.container",
		},
		"a slash": {func(r *Request) { r.Container = "c0/i0" }, "s2", "404.container"},
		"dots":    {func(r *Request) { r.Instance = ".." }, "s2", "404.instance"},
		"unicode": {func(r *Request) { r.Instance = "ｉ0" }, "s2", "404.instance"},
		"container of 10 kB": {
			func(r *Request) { r.Container = strings.Repeat("c", 10<<10) }, "s2", "404.container",
		},
		"instance of another container": {func(r *Request) { r.Instance = "i1" }, "s2", "404.instance"},
		"unknown server":                {nil, "s99", "422.invalid-argument at /value/destination_server_id"},
		"server of another cluster":     {nil, "t1", "422.not-compatible at /value/destination_server_id"},
		"current server":                {nil, "s1", "409.invalid-state at /value/destination_server_id"},
		"server of 10 kB": {
			nil, strings.Repeat("s", 10<<10), "422.invalid-argument at /value/destination_server_id",
		},
	} {
		r := s.request(0, c.to)
		if c.change != nil {
			c.change(&r)
		}
		_, err := s.svc.Migrate(t.Context(), r)
		var refused *relay.Error
		if !errors.As(err, &refused) || !strings.HasPrefix(describeError(err), c.want) {
			t.Errorf("%s: got error %v, want %s", name, err, c.want)
		}
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("%s: got an error of %d bytes", name, len(err.Error()))
		}
	}
	id := s.migrate(0, "s2")
	_, err := s.svc.Migrate(t.Context(), s.request(0, "s3"))
	var refused *relay.Error
	if !errors.As(err, &refused) || refused.Code != relay.CodeInvalidState || refused.Extra["job_id"] != id {
		t.Errorf("during a migration: got %v", err)
	}
	for _, other := range []string{"0123456789abcdef01234567", "x", strings.Repeat("0", 5000), id[:23] + "G"} {
		if _, err := s.svc.Job(t.Context(), s.request(0, "").Caller, other); !errors.As(err, &refused) ||
			refused.Code != relay.CodeNoJob {
			t.Errorf("job %.30s: %v", other, err)
		}
	}
	otherHub := module.Caller{Hub: "hub-b", Sees: func(string) bool { return true }}
	if _, err := s.svc.Job(t.Context(), otherHub, id); !errors.As(err, &refused) || refused.Code != relay.CodeNoJob {
		t.Errorf("job of another hub: got %v", err)
	}
}

// Only one of many concurrent requests for an instance creates a job. Repeated requests with its idempotency key return
// the same job.
func TestService_ConcurrentRequests(t *testing.T) {
	t.Parallel()
	s := newSite(t, newRedis(t))
	var wait sync.WaitGroup
	var mu sync.Mutex
	ids, rejections := map[string]int{}, 0
	for i := range 20 {
		wait.Go(func() {
			r := s.request(0, "s2")
			if i%2 == 0 {
				r.IdempotencyKey = "again"
			}
			d, err := s.svc.Migrate(context.Background(), r)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				rejections++
				return
			}
			ids[d.JobID]++
		})
	}
	wait.Wait()
	if len(ids) != 1 || rejections == 0 {
		t.Errorf("got %d jobs, %d rejections", len(ids), rejections)
	}
	for id, n := range ids {
		if events := s.events(id); len(events) != 2 {
			t.Errorf("job %s, returned %d times: got events %v, want 2", id, n, events)
		}
	}
	r := s.request(1, "s2")
	r.IdempotencyKey = "one"
	first, err := s.svc.Migrate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.svc.Migrate(t.Context(), r); err != nil || again != first {
		t.Errorf("repeated request: got %v, %v", again, err)
	}
	r.Body = []byte(strings.Replace(string(r.Body), "s2", "s3", 1))
	if _, err := s.svc.Migrate(t.Context(), r); err == nil ||
		!strings.Contains(err.Error(), "used for another request") {
		t.Errorf("other request with the same key: got %v", err)
	}
	other, sameName := r, r
	other.KeyName, sameName.Account = "other", "other"
	for _, r := range []Request{other, sameName} {
		var rejected *relay.Error
		if _, err := s.svc.Migrate(t.Context(), r); !errors.As(err, &rejected) || rejected.Code != relay.CodeInvalidState {
			t.Errorf("same key of %s of account %q: got %v", r.KeyName, r.Account, err)
		}
	}
}
