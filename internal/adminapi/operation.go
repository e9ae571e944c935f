package adminapi

import (
	_ "embed"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
)

// Operation is one operation of the admin API with the types of its request and of the data in its response.
//
// The request of a GET is encoded in the query, and the request of another method in the body as JSON. Members of
// requests have the same names in both.
type Operation[Request, Response any] struct {
	Description
}

// Description describes an operation without its types.
type Description struct {
	// Name identifies the operation, in the audit log too: "sinks.pause".
	Name string
	// Method is GET, which also allows HEAD, POST or PUT.
	Method string
	// Path contains parameters in braces: "/api/sinks/{name}/pause".
	Path string
	// Role is the role that a caller needs.
	Role Role
	// Summary is a sentence for documentation, without a period.
	Summary string
	// SkipsReplicas is set if the server need not wait for replicas of Redis: the operation stores nothing, or waits itself.
	SkipsReplicas bool
}

// Empty is the request of an operation without parameters.
type Empty struct{}

// HasTopics is implemented by requests that select topics. The server rejects a pattern that matches no topic, because that
// is probably a typing error.
type HasTopics interface {
	// TopicPatterns returns lists of patterns, separated by commas.
	TopicPatterns() []string
}

// Envelope is the body of a successful response.
type Envelope[T any] struct {
	Data T `json:"data"`
}

func newOperation[Request, Response any](name, method, path string, role Role, summary string) Operation[Request, Response] {
	return Operation[Request, Response]{Description{Name: name, Method: method, Path: path, Role: role, Summary: summary}}
}

// readOperation returns an operation that changes nothing.
func readOperation[Request, Response any](name, path string, role Role, summary string) Operation[Request, Response] {
	return newOperation[Request, Response](name, http.MethodGet, path, role, summary)
}

// checkOperation returns an operation of operators that stores nothing, but is no GET.
func checkOperation[Request, Response any](name, path, summary string) Operation[Request, Response] {
	op := operatorOperation[Request, Response](name, path, summary)
	op.SkipsReplicas = true
	return op
}

// keyOperation returns an operation of administrators that changes a key. The store of keys waits for replicas itself, and
// undoes a new secret that they do not confirm.
func keyOperation[Request, Response any](name, path, summary string) Operation[Request, Response] {
	op := adminOperation[Request, Response](name, path, summary)
	op.SkipsReplicas = true
	return op
}

// viewerOperation returns an operation that changes nothing, for all roles.
func viewerOperation[Request, Response any](name, path, summary string) Operation[Request, Response] {
	return readOperation[Request, Response](name, path, RoleViewer, summary)
}

// operatorOperation returns an operation of operators.
func operatorOperation[Request, Response any](name, path, summary string) Operation[Request, Response] {
	return newOperation[Request, Response](name, http.MethodPost, path, RoleOperator, summary)
}

// adminOperation returns an operation of administrators.
func adminOperation[Request, Response any](name, path, summary string) Operation[Request, Response] {
	return newOperation[Request, Response](name, http.MethodPost, path, RoleAdmin, summary)
}

// URL returns the path with the given values for its parameters, in their order. Their number must be the same.
func (d Description) URL(params ...string) (string, error) {
	if names := d.ParameterNames(); len(names) != len(params) {
		return "", fmt.Errorf("%s has %d parameters, got %d", d.Path, len(names), len(params))
	}
	var b strings.Builder
	rest := d.Path
	for _, value := range params {
		before, after, _ := strings.Cut(rest, "{")
		b.WriteString(before + escapeSegment(value))
		_, rest, _ = strings.Cut(after, "}")
	}
	return b.String() + rest, nil
}

// escapeSegment escapes a segment of a path. Servers remove "." and ".." from paths, unless they are escaped.
func escapeSegment(value string) string {
	if value == "." || value == ".." {
		return strings.ReplaceAll(value, ".", "%2E")
	}
	return url.PathEscape(value)
}

// ParameterNames returns the names of the parameters in the path.
func (d Description) ParameterNames() (names []string) {
	for part := range strings.SplitSeq(d.Path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			names = append(names, strings.TrimSuffix(name, "}"))
		}
	}
	return names
}

// AnyOperation is an operation with any types.
type AnyOperation interface {
	// Describe returns the description.
	Describe() Description
	// Types returns the types of the request and of the response.
	Types() (request, response reflect.Type)
}

// Describe returns the description.
func (d Description) Describe() Description { return d }

// Types returns the types of the request and of the response.
func (Operation[Request, Response]) Types() (request, response reflect.Type) {
	return reflect.TypeFor[Request](), reflect.TypeFor[Response]()
}

// Operations returns all operations.
func Operations() []AnyOperation {
	return []AnyOperation{
		ListSinks(), ShowSink(), PauseSink(), ResumeSink(), RetrySink(), ReplaySink(), TestSink(), ForgetSink(),
		ListDeadLetters(), ShowDeadLetter(), ReplayDeadLetters(), DropDeadLetters(),
		ListQuarantine(), ShowQuarantined(), ReplayQuarantined(), DropQuarantined(),
		SearchEvents(), ShowEvent(), ListDeliveries(), RetryDeliveries(), DropDeliveries(),
		ListSources(), ListConnections(), ExplainStream(), ListAudit(),
		ListKeys(), CheckKey(), CreateKey(), RotateKey(), RevokeKey(), EraseAccount(),
		ListInventory(), ImportInventory(), ShowSession(), ShowStatus(), ListNodes(),
		ListJobs(), ShowJob(), CreateJob(), CancelJob(), ShowConfig(), ShowConfigVersion(),
	}
}

//go:embed openapi.yaml
var openAPI string

// OpenAPI returns the description of all operations in OpenAPI 3.1, as YAML. `go test ./internal/adminapi -update`
// generates it from the types of this package.
func OpenAPI() string { return openAPI }
