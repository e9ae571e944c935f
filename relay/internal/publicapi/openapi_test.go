package publicapi

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/hubrelay/hubrelay/relay/internal/ingest"
)

type discard struct{}

func (discard) Publish(context.Context, ingest.Publication) ([]string, error) {
	return []string{"0123456789abcdef01234567"}, nil
}

type nullWriter struct {
	header http.Header
	status int
}

func (w *nullWriter) Header() http.Header         { return w.header }
func (w *nullWriter) WriteHeader(s int)           { w.status = s }
func (w *nullWriter) Write(p []byte) (int, error) { return len(p), nil }

func TestOpenAPI_MatchesRoutes(t *testing.T) {
	t.Parallel()
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]any
	}
	if err := yaml.Unmarshal([]byte(openAPI), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("openapi: %q", doc.OpenAPI)
	}
	a, err := New(Options{Routes: new(fakeJobs).routes()})
	if err != nil {
		t.Fatal(err)
	}
	routes := maps.Clone(a.routes)
	for _, rt := range a.paramRoutes {
		routes[rt.pattern] = rt
	}
	for path, rt := range routes {
		for method := range rt.methods {
			if doc.Paths[path][strings.ToLower(method)] == nil {
				t.Errorf("%s %s is not in the document", method, path)
			}
		}
	}
	for path, methods := range doc.Paths {
		for method := range methods {
			if method != "parameters" && routes[path].methods[strings.ToUpper(method)] == nil {
				t.Errorf("the document has %s %s, which does not exist", method, path)
			}
		}
	}
	references(t, "openapi", openAPI)
}

func TestAsyncAPI(t *testing.T) {
	t.Parallel()
	var doc struct {
		AsyncAPI string
		Channels map[string]struct{ Address string }
	}
	if err := yaml.Unmarshal([]byte(asyncAPI), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.AsyncAPI != "3.0.0" || doc.Channels["notifications"].Address != pathNotifications {
		t.Errorf("%+v", doc)
	}
	references(t, "asyncapi", asyncAPI)
}

// references checks that every $ref of a document refers to an existing part of it.
func references(t *testing.T, name, text string) {
	t.Helper()
	var root any
	if err := yaml.Unmarshal([]byte(text), &root); err != nil {
		t.Fatal(err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok && !resolves(root, ref) {
				t.Errorf("%s: %s leads nowhere", name, ref)
			}
			for _, child := range v {
				walk(child)
			}
		case []any:
			for _, child := range v {
				walk(child)
			}
		}
	}
	walk(root)
}

func resolves(root any, ref string) bool {
	path, ok := strings.CutPrefix(ref, "#/")
	for step := range strings.SplitSeq(path, "/") {
		object, isObject := root.(map[string]any)
		if !isObject {
			return false
		}
		root = object[step]
	}
	return ok && root != nil
}

func TestDocumentsAreServed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	for path, text := range map[string]string{"/openapi.yaml": openAPI, "/asyncapi.yaml": asyncAPI} {
		a := f.do("GET", path, "")
		if a.status != 200 || string(a.body) != text ||
			a.header.Get("Content-Type") != "application/yaml; charset=utf-8" {
			t.Errorf("%s: %d %v", path, a.status, a.header)
		}
		if a := f.do("HEAD", path, ""); a.status != 200 || len(a.body) != 0 {
			t.Errorf("HEAD %s: %d, %d bytes", path, a.status, len(a.body))
		}
	}
}
