package relay

import (
	"fmt"
	"slices"
	"strings"
)

// Filter selects notifications. An empty list selects everything, so the zero value passes all but the relay's own
// notifications. It may be used concurrently as long as nobody changes it.
type Filter struct {
	Topics Patterns
	// Hubs and Accounts are compared whole; there are no patterns in them.
	Hubs     []string
	Accounts []string
	// Environments, Clusters and Containers are compared whole too. A notification passes a list if one of its own
	// values is in it; where it has none it does not pass.
	Environments []string
	Clusters     []string
	Containers   []string
	// When is asked last; nil passes everything.
	When Condition
}

// Condition is a question about what a notification says. It may be called concurrently, must not block and must not
// change the envelope. An error means that it has no answer: the notification passes then, because a delivery too many
// can be dealt with and a lost one cannot.
type Condition func(*Envelope) (bool, error)

// Match reports whether n passes every part of the filter. It decodes n only for a filter that looks inside.
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

// NeedsEnvelope reports whether the filter asks for more than topic, hub and account.
func (f *Filter) NeedsEnvelope() bool {
	return f.When != nil || len(f.Environments)+len(f.Clusters)+len(f.Containers) > 0
}

// MatchEnvelope is the part of [Filter.Match] that needs the decoded notification, for those who ask several filters
// about one. What cannot be decoded passes.
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

// containsAny reports whether some value is wanted.
func containsAny(wanted, values []string) bool {
	if len(wanted) == 0 {
		return true
	}
	for _, v := range values {
		if slices.Contains(wanted, v) {
			return true
		}
	}
	return false
}

// Explain answers like [Filter.Match] and says why in words: the pattern that matched, or the first rule that refuses n.
func (f Filter) Explain(n Notification) (passes bool, reason string) {
	passes, reason = f.Topics.Explain(n.Topic)
	if !passes {
		return false, reason
	}
	for _, one := range []struct {
		rule, value string
		wanted      []string
	}{{"hub", n.Hub, f.Hubs}, {"account", n.Account, f.Accounts}} {
		if len(one.wanted) > 0 && !slices.Contains(one.wanted, one.value) {
			return false, fmt.Sprintf("%ss does not list the %s %q", one.rule, one.rule, Truncate(one.value, 80))
		}
	}
	if !f.NeedsEnvelope() {
		return true, reason
	}
	e, err := n.Envelope()
	if err != nil {
		return true, reason + "; it cannot be decoded (" + err.Error() + "), and what cannot be decoded passes"
	}
	return f.explainEnvelope(&e, reason)
}

func (f *Filter) explainEnvelope(e *Envelope, reason string) (bool, string) {
	c := &e.Context
	for _, one := range []struct {
		rule           string
		wanted, values []string
	}{
		{"environments", f.Environments, c.Environments},
		{"clusters", f.Clusters, c.Clusters},
		{"containers", f.Containers, c.Containers},
	} {
		switch {
		case containsAny(one.wanted, one.values):
		case len(one.values) == 0:
			return false, one.rule + " is a list, and the notification has none"
		default:
			return false, fmt.Sprintf("%s lists none of the notification's: %s", one.rule, Truncate(strings.Join(one.values, ", "), 200))
		}
	}
	if f.When == nil {
		return true, reason
	}
	switch passes, err := f.When(e); {
	case err != nil:
		return true, reason + "; when failed (" + err.Error() + "), and a condition that fails lets everything pass"
	case !passes:
		return false, "when is false"
	}
	return true, reason + "; when is true"
}
