package wire

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	"github.com/hubrelay/hubrelay/plugins/proto/sink/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// A Note is the daemon's own, and one explanation holds no second list.
func TestExplanation_ConvertsAllFields(t *testing.T) {
	var one relay.Preview
	var next int
	for i := range reflect.TypeFor[relay.Preview]().NumField() {
		if f := reflect.ValueOf(&one).Elem().Field(i); f.Type() != reflect.TypeFor[[]relay.Preview]() {
			fill(t, f, &next)
		}
	}
	one.Note = ""
	want := one
	want.Followups = []relay.Preview{one, one}
	m := FromExplanation(want)
	unset(t, m.ProtoReflect())
	if got := ToExplanation(over(t, m, &sinkv1.ExplainResponse{})); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if got := ToExplanation(nil); got.Method == "" || got.Target == "" {
		t.Errorf("of nothing it is %+v", got)
	}
}

func TestProblems_RoundTrip(t *testing.T) {
	err := errors.Join(&relay.FieldError{Field: "tls.ca_file", Problem: "is no file"},
		fmt.Errorf("look: %w", errors.New("a\xffb")),
		errors.Join(&relay.FieldError{Field: "a", Problem: "b"}))
	want := []relay.FieldError{
		{Field: "tls.ca_file", Problem: "is no file"}, {Problem: "look: a�b"}, {Field: "a", Problem: "b"},
	}
	sink := &sinkv1.ValidateResponse{Problems: FromProblems(err)}
	driver := &driverv1.ValidateResponse{Problems: FromDriverProblems(err)}
	unset(t, sink.ProtoReflect())
	unset(t, driver.ProtoReflect())
	if got := ToProblems(over(t, sink, &sinkv1.ValidateResponse{}).GetProblems()); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if got := ToProblems(over(t, driver, &driverv1.ValidateResponse{}).GetProblems()); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if got := FromProblems(nil); got != nil {
		t.Errorf("of none there are %v", got)
	}
}

// A plugin may send anything.
func TestToProblems_AcceptsAnyInput(t *testing.T) {
	list := []*sinkv1.Problem{nil, {Key: strings.Repeat("é", maxText), Text: strings.Repeat("é", maxText)}}
	for range maxProblems {
		list = append(list, &sinkv1.Problem{})
	}
	got := ToProblems(list)
	if last := got[len(got)-1].Problem; last != "the plugin has reported 2 more errors" {
		t.Errorf("got the last problem %q", last)
	}
	if len(got) != maxProblems+1 || got[0].Problem == "" || len(got[1].Field) > maxText || len(got[1].Problem) > maxText {
		t.Errorf("%d: %+v", len(got), got[0])
	}
}
