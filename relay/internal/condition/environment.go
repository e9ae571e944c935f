package condition

import (
	"errors"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// environment is what an expression sees: relay.Envelope under the names that it has in JSON. The types must convert
// into each other, which the compiler checks.
type environment struct {
	Topic   string  `expr:"topic"`
	Object  object  `expr:"object"`
	Context context `expr:"context"`
	// Budget has a name that no expression can write.
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

func (v *environment) fill(e *relay.Envelope) {
	v.Topic, v.Object, v.Context = e.Topic, object(e.Object), context(e.Context)
}

// Names of the environment, for the hints of error messages.
func rootNames() []string    { return []string{"topic", "object", "context"} }
func objectFields() []string { return []string{"id", "state", "error"} }
func contextFields() []string {
	return []string{"hub_id", "account_id", "environments", "dns_zones", "clusters", "containers"}
}

// allowedFunctions are those that an expression may call. Each takes time and memory in proportion to its arguments at most,
// reads nothing else, and answers the same every time. first, last and the find family are not among them: where
// they find nothing, comparing the answer fails at run time, and any and in say the same without that.
func allowedFunctions() []string {
	return []string{
		"all", "any", "none", "one", "count", "filter",
		"len", "indexOf", "lastIndexOf", "hasPrefix", "hasSuffix",
		"lower", "upper", "trim", "trimPrefix", "trimSuffix", "split", "int", "float",
	}
}

const (
	// maxIterations bounds the passes of all loops of one evaluation together. It lets an expression go once over the
	// longest list that a notification of 256 KiB can hold.
	maxIterations = 100_000
	// maxTime bounds how long the loops of one evaluation may take, looked at in each pass. It is generous, so that a
	// machine that is busy does not change answers.
	maxTime = time.Second
)

// evalBudget belongs to one evaluation.
type evalBudget struct {
	iterations int
	startedAt  time.Time // of the first round
}

var (
	errRounds = fmt.Errorf("took more than %d passes of its loops", maxIterations)
	errTime   = fmt.Errorf("took longer than %s", maxTime)
	errBudget = errors.New("has no budget")
)

// chargeIteration is called before each pass of a loop, with the evaluation's budget.
func chargeIteration(params ...any) (any, error) {
	if len(params) != 1 {
		return false, errBudget
	}
	b, ok := params[0].(*evalBudget)
	if !ok {
		return false, errBudget
	}
	if b.iterations++; b.iterations == 1 {
		b.startedAt = time.Now()
	} else if b.iterations > maxIterations {
		return false, errRounds
	} else if time.Since(b.startedAt) > maxTime {
		return false, errTime
	}
	return true, nil
}
