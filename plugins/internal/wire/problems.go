package wire

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	"github.com/hubrelay/hubrelay/plugins/proto/sink/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// maxProblems is the maximum number of problems of a plugin that are shown.
const maxProblems = 100

// Problem is a problem in either protocol.
type Problem interface {
	GetKey() string
	GetText() string
}

// FromProblems converts the result of Validate of a sink. A [relay.FieldError] names its key.
func FromProblems(err error) []*sinkv1.Problem {
	var list []*sinkv1.Problem
	for _, p := range flattenErrors(err) {
		list = append(list, &sinkv1.Problem{Key: p.Field, Text: p.Problem})
	}
	return list
}

// FromDriverProblems is FromProblems for drivers.
func FromDriverProblems(err error) []*driverv1.Problem {
	var list []*driverv1.Problem
	for _, p := range flattenErrors(err) {
		list = append(list, &driverv1.Problem{Key: p.Field, Text: p.Problem})
	}
	return list
}

// flattenErrors lists the errors of a joined error.
func flattenErrors(err error) []relay.FieldError {
	var several interface{ Unwrap() []error }
	var field *relay.FieldError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &several):
		var list []relay.FieldError
		for _, one := range several.Unwrap() {
			list = append(list, flattenErrors(one)...)
		}
		return list
	case errors.As(err, &field):
		return []relay.FieldError{{Field: toValidUTF8(field.Field), Problem: truncate(field.Problem)}}
	}
	return []relay.FieldError{{Problem: truncate(err.Error())}}
}

// ToProblems is the inverse of both. The texts are untrusted: it truncates them to maxText and makes them valid UTF-8. After
// maxProblems it adds how many more there are.
func ToProblems[P Problem](list []P) []relay.FieldError {
	var out []relay.FieldError
	for _, p := range list[:min(len(list), maxProblems)] {
		f := relay.FieldError{Field: truncate(p.GetKey()), Problem: truncate(p.GetText())}
		if f.Problem == "" {
			f.Problem = "is invalid; the plugin gave no reason"
		}
		out = append(out, f)
	}
	if more := len(list) - maxProblems; more > 0 {
		out = append(out, relay.FieldError{Problem: fmt.Sprintf("the plugin has reported %d more errors", more)})
	}
	return out
}

// FromExplanation converts what a sink would send to its message.
func FromExplanation(e relay.Preview) *sinkv1.ExplainResponse {
	m := &sinkv1.ExplainResponse{}
	for _, one := range slices.Concat([]relay.Preview{e}, e.Followups) {
		to := &sinkv1.Explanation{
			Method: toValidUTF8(one.Method), Target: toValidUTF8(one.Target), Payload: one.Payload,
		}
		for _, h := range one.Headers {
			to.Headers = append(to.Headers, &sinkv1.Header{Name: toValidUTF8(h.Name), Value: toValidUTF8(h.Value)})
		}
		m.Explanations = append(m.Explanations, to)
	}
	return m
}

// ToExplanation is the inverse of FromExplanation.
func ToExplanation(m *sinkv1.ExplainResponse) relay.Preview {
	var list []relay.Preview
	for _, one := range m.GetExplanations() {
		to := relay.Preview{Method: one.GetMethod(), Target: one.GetTarget(), Payload: one.GetPayload()}
		for _, h := range one.GetHeaders() {
			to.Headers = append(to.Headers, relay.Header{Name: h.GetName(), Value: h.GetValue()})
		}
		list = append(list, to)
	}
	if len(list) == 0 {
		return relay.Preview{Method: "send", Target: "nothing"}
	}
	list[0].Followups = list[1:]
	return list[0]
}
