package relay

import (
	"fmt"
	"slices"
	"strings"
)

// Filter selects notifications. An empty list matches everything, so the zero value matches all notifications
// except the relay's own. A Filter may be used concurrently if nothing modifies it.
type Filter struct {
	Topics Patterns
	// Hubs and Accounts are compared literally, without patterns.
	Hubs     []string
	Accounts []string
	// Environments, Clusters and Containers are compared literally. A notification matches a list if one of its
	// values is in the list. A notification without values does not match.
	Environments []string
	Clusters     []string
	Containers   []string
	// When is evaluated last. Nil matches everything.
	When Condition
}

// Condition evaluates an expression on a notification. It may be called concurrently, must not block and must not
// change the envelope. If it returns an error, the notification matches, because an unwanted delivery does less
// harm than a lost one.
type Condition func(*Envelope) (bool, error)

// Match reports whether n matches all parts of the filter. It decodes n only if [Filter.NeedsEnvelope] is true.
func (f Filter) Match(n Notification) bool {
	if (len(f.Hubs) != 0 && !slices.Contains(f.Hubs, n.Hub)) ||
		(len(f.Accounts) != 0 && !slices.Contains(f.Accounts, n.Account)) ||
		!f.Topics.Match(n.Topic) {
		return false
	}
	if !f.NeedsEnvelope() {
		return true
	}
	e, err := n.Envelope()
	return err != nil || f.MatchEnvelope(&e)
}

// NeedsEnvelope reports whether the filter uses more than topic, hub and account.
func (f *Filter) NeedsEnvelope() bool {
	return f.When != nil || len(f.Environments)+len(f.Clusters)+len(f.Containers) > 0
}

// MatchEnvelope evaluates the part of [Filter.Match] that needs the decoded notification. Callers with several
// filters decode only once. A notification that cannot be decoded matches.
func (f *Filter) MatchEnvelope(e *Envelope) bool {
	if !containsAny(f.Environments, e.Context.Environments) || !containsAny(f.Clusters, e.Context.Clusters) ||
		!containsAny(f.Containers, e.Context.Containers) {
		return false
	}
	if f.When == nil {
		return true
	}
	passes, err := f.When(e)
	return passes || err != nil
}

// containsAny reports whether accepted contains one of values, or is empty.
func containsAny(accepted, values []string) bool {
	if len(accepted) == 0 {
		return true
	}
	for _, v := range values {
		if slices.Contains(accepted, v) {
			return true
		}
	}
	return false
}

// Explain returns the result of [Filter.Match] with a reason: the pattern that matched, or the first rule that
// rejects n.
func (f Filter) Explain(n Notification) (passes bool, reason string) {
	passes, reason = f.Topics.Explain(n.Topic)
	if !passes {
		return false, reason
	}
	for _, one := range []struct {
		rule, value string
		accepted    []string
	}{{"hub", n.Hub, f.Hubs}, {"account", n.Account, f.Accounts}} {
		if len(one.accepted) > 0 && !slices.Contains(one.accepted, one.value) {
			return false, fmt.Sprintf("%ss does not list the %s %q", one.rule, one.rule, Truncate(one.value, 80))
		}
	}
	if !f.NeedsEnvelope() {
		return true, reason
	}
	e, err := n.Envelope()
	if err != nil {
		return true, reason + "; it cannot be decoded (" + err.Error() + "), so it passes"
	}
	return f.explainEnvelope(&e, reason)
}

func (f *Filter) explainEnvelope(e *Envelope, reason string) (bool, string) {
	c := &e.Context
	for _, one := range []struct {
		rule             string
		accepted, values []string
	}{
		{"environments", f.Environments, c.Environments},
		{"clusters", f.Clusters, c.Clusters},
		{"containers", f.Containers, c.Containers},
	} {
		switch {
		case containsAny(one.accepted, one.values):
		case len(one.values) == 0:
			return false, one.rule + " is a list, and the event has none"
		default:
			values := Truncate(strings.Join(one.values, ", "), 200)
			return false, fmt.Sprintf("%s lists none of the event's: %s", one.rule, values)
		}
	}
	if f.When == nil {
		return true, reason
	}
	switch passes, err := f.When(e); {
	case err != nil:
		return true, reason + "; when failed (" + err.Error() + "), so the event passes"
	case !passes:
		return false, "when is false"
	}
	return true, reason + "; when is true"
}
