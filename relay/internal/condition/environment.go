package condition

import (
	"errors"
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
)

// environment is the input of an expression: relay.Envelope with its JSON names. The compiler checks that the
// types convert.
type environment struct {
	Topic   string  `expr:"topic"`
	Object  object  `expr:"object"`
	Context context `expr:"context"`
	// Budget has a name that cannot be written in an expression.
	Budget *evalBudget `expr:"(budget)"`
}

type object struct {
	ID    string `expr:"id"`
	State string `expr:"state"`
	Error string `expr:"error"`
}

type context struct {
	HubID        string   `expr:"hub_id"`
	AccountID    string   `expr:"account_id"`
	Environments []string `expr:"environments"`
	DNSZones     []string `expr:"dns_zones"`
	Clusters     []string `expr:"clusters"`
	Containers   []string `expr:"containers"`
}

func (env *environment) fill(e *relay.Envelope) {
	env.Topic, env.Object, env.Context = e.Topic, object(e.Object), context(e.Context)
}

// Names in the environment, for hints.
func rootNames() []string    { return []string{"topic", "object", "context"} }
func objectFields() []string { return []string{"id", "state", "error"} }
func contextFields() []string {
	return []string{"hub_id", "account_id", "environments", "dns_zones", "clusters", "containers"}
}

// allowedFunctions returns the functions that an expression may call. Each is deterministic, and its time and
// memory are proportional to its arguments. first, last and the find functions are missing, because comparing
// their result fails at run time if they find nothing; any and in do the same without this problem.
func allowedFunctions() []string {
	return []string{
		"all", "any", "none", "one", "count", "filter",
		"len", "indexOf", "lastIndexOf", "hasPrefix", "hasSuffix",
		"lower", "upper", "trim", "trimPrefix", "trimSuffix", "split", "int", "float",
	}
}

const (
	// maxIterations limits the iterations of all loops of an evaluation together. All sinks of a partition wait for its evaluations,
	// and an iteration takes as long as reading 50 bytes of the notification.
	maxIterations = 10_000
	// maxSearched limits the work of loops that search the notification in each iteration, in bytes. Each iteration counts the size
	// of the notification. Otherwise the time of such a loop would grow with the square of that size.
	maxSearched = 1 << 20
)

// evalBudget is the budget of one evaluation.
type evalBudget struct {
	iterations int
	searched   int // bytes that iterations have searched in the notification
	size       int // of the notification, 0 before the first search
	envelope   *relay.Envelope
}

var (
	errSearched   = errors.New("exceeded the limit of 1 MiB for loops that search the event, or contain a loop, in each iteration")
	errIterations = fmt.Errorf("exceeded the limit of %d loop iterations", maxIterations)
	errBudget     = errors.New("has no budget")
)

// chargeIteration is called before each iteration of a loop with the budget of the evaluation, and whether the iteration searches
// the notification.
func chargeIteration(params ...any) (any, error) {
	if len(params) != 2 {
		return false, errBudget
	}
	b, ok := params[0].(*evalBudget)
	isSearch, isBool := params[1].(bool)
	if !ok || !isBool {
		return false, errBudget
	}
	if isSearch {
		if b.size == 0 {
			b.size = sizeOf(b.envelope)
		}
		if b.searched += b.size; b.searched > maxSearched {
			return false, errSearched
		}
	}
	if b.iterations++; b.iterations > maxIterations {
		return false, errIterations
	}
	return true, nil
}

// sizeOf returns about the bytes of the values of a notification.
func sizeOf(e *relay.Envelope) int {
	const element = 16 // a comparison takes as long as reading these bytes
	size := element + len(e.Object.ID) + len(e.Object.State) + len(e.Object.Error)
	c := &e.Context
	for _, list := range [][]string{c.Environments, c.DNSZones, c.Clusters, c.Containers} {
		for _, text := range list {
			size += element + len(text)
		}
	}
	return size
}
