package wire

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hubrelay/hubrelay/plugins/proto/sink/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// fill sets every field of v to a different value, recursively.
func fill(t *testing.T, v reflect.Value, next *int) {
	t.Helper()
	*next++
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(int64(*next), 7).UTC()))
		return
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		v.SetBytes(fmt.Appendf(nil, "%d", *next))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("text", *next))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*next))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), next)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), next)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, v.Index(i), next)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(t, key, next)
			fill(t, value, next)
			v.SetMapIndex(key, value)
		}
	default:
		t.Fatalf("the test cannot fill a %s: teach it, and the conversion too", v.Type())
	}
}

// over sends a message through its bytes.
func over[M proto.Message](t *testing.T, m, into M) M {
	t.Helper()
	text, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
	return into
}

// A field that is added to the vocabulary and forgotten here, or in the protocol, fails this test.
func TestDelivery_ConvertsAllFields(t *testing.T) {
	var d relay.Delivery
	var next int
	fill(t, reflect.ValueOf(&d).Elem(), &next)
	m := FromDelivery(d)
	m.TimeoutMs = 1500
	unset(t, m.ProtoReflect())
	got, timeout := ToDelivery(over(t, m, &sinkv1.Delivery{}))
	if !reflect.DeepEqual(got, d) || timeout != 1500*time.Millisecond {
		t.Errorf("after %s:\n got %+v %+v\nwant %+v %+v", timeout, got, got.Digest, d, d.Digest)
	}
}

func TestDelivery_SingleNotification(t *testing.T) {
	want := relay.Delivery{ID: "a", Attempt: 3, Notifications: []relay.Notification{{ID: "a", Data: []byte("{}")}}}
	got, timeout := ToDelivery(over(t, FromDelivery(want), &sinkv1.Delivery{}))
	if !reflect.DeepEqual(got, want) || timeout != 0 {
		t.Errorf("got %+v, %s", got, timeout)
	}
	digest := relay.Digest{Topics: map[string]int{}}
	want.Digest = &digest
	if got, _ := ToDelivery(over(t, FromDelivery(want), &sinkv1.Delivery{})); !got.Digest.First.IsZero() || !got.Digest.Last.IsZero() {
		t.Errorf("no time came back as %s, %s", got.Digest.First, got.Digest.Last)
	}
}

func TestOutcome_RoundTrip(t *testing.T) {
	cause := errors.New("oh no")
	answer := &relay.ResponseError{Status: 503, Body: "later"}
	for name, c := range map[string]struct {
		err  error
		text string
	}{
		"ok":          {nil, ""},
		"retry":       {cause, "oh no"},
		"retry after": {relay.RetryAfter(cause, 90*time.Second), "oh no"},
		"at once":     {relay.RetryAfter(cause, 0), "oh no"},
		"permanent":   {fmt.Errorf("post: %w", relay.Permanent(cause)), "post: oh no"},
		"gone":        {relay.Gone(cause), "oh no"},
		"answer":      {relay.Permanent(fmt.Errorf("post: %w", answer)), "post: status 503"},
		"no text":     {errors.New(""), "the plugin gave no reason"},
		"broken text": {errors.New("a\xffb"), "a�b"},
	} {
		t.Run(name, func(t *testing.T) {
			m := FromOutcome("id", 7, c.err)
			got := ToOutcome(over(t, m, &sinkv1.Ack{}))
			if m.GetDeliveryId() != "id" || m.GetAttempt() != 7 {
				t.Errorf("the ack is of %s, %d", m.GetDeliveryId(), m.GetAttempt())
			}
			wantOutcome, wantAfter := relay.Classify(c.err)
			if outcome, after := relay.Classify(got); outcome != wantOutcome || after != wantAfter {
				t.Errorf("%s after %s, want %s after %s", outcome, after, wantOutcome, wantAfter)
			}
			if got != nil && got.Error() != c.text {
				t.Errorf("text %q, want %q", got, c.text)
			}
			var was, is *relay.ResponseError
			if errors.As(c.err, &was) != errors.As(got, &is) || was != nil && *was != *is {
				t.Errorf("answer %+v, want %+v", is, was)
			}
		})
	}
}

// A plugin may send anything.
func TestToOutcome_AcceptsAnyInput(t *testing.T) {
	for _, m := range []*sinkv1.Ack{
		{}, {Outcome: 99}, {Outcome: sinkv1.Outcome_OUTCOME_RETRY_AFTER, RetryAfterMs: -5},
	} {
		if outcome, after := relay.Classify(ToOutcome(m)); outcome != relay.OutcomeRetry || after != 0 {
			t.Errorf("%v is %s after %s", m, outcome, after)
		}
	}
	long := ToOutcome(&sinkv1.Ack{Outcome: sinkv1.Outcome_OUTCOME_GONE, Error: strings.Repeat("é", maxText)})
	if text := long.Error(); len(text) > maxText || !utf8.ValidString(text) {
		t.Errorf("%d bytes, valid: %v", len(text), utf8.ValidString(text))
	}
}

// A long delay must not overflow, which would make it negative or short.
func TestDurations_LimitsMilliseconds(t *testing.T) {
	const longest = math.MaxInt64 / int64(time.Millisecond)
	for ms, want := range map[int64]time.Duration{
		math.MinInt64: 0, -1: 0, 1500: 1500 * time.Millisecond, longest: time.Duration(longest) * time.Millisecond,
		longest + 1: time.Duration(longest) * time.Millisecond, math.MaxInt64: time.Duration(longest) * time.Millisecond,
	} {
		_, after := relay.Classify(ToOutcome(&sinkv1.Ack{Outcome: sinkv1.Outcome_OUTCOME_RETRY_AFTER, RetryAfterMs: ms}))
		if _, timeout := ToDelivery(&sinkv1.Delivery{TimeoutMs: ms}); after != want || timeout != want {
			t.Errorf("%d ms: got a delay of %s and a timeout of %s, want %s", ms, after, timeout, want)
		}
	}
}

func BenchmarkDelivery(b *testing.B) {
	d := relay.Delivery{ID: "0123456789abcdef01234567", Attempt: 1, Notifications: []relay.Notification{{
		ID: "0123456789abcdef01234567", Topic: "container.created", Hub: "h", Data: []byte(strings.Repeat("x", 450)),
	}}}
	b.ReportAllocs()
	for b.Loop() {
		text, err := proto.Marshal(FromDelivery(d))
		if err != nil {
			b.Fatal(err)
		}
		var m sinkv1.Delivery
		if err := proto.Unmarshal(text, &m); err != nil {
			b.Fatal(err)
		}
		ToDelivery(&m)
	}
}

// unset fails for a field of the protocol that nothing fills.
func unset(t *testing.T, m protoreflect.Message) {
	t.Helper()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case !m.Has(f):
			t.Errorf("%s is not set", f.FullName())
		case f.IsList() && f.Message() != nil:
			unset(t, m.Get(f).List().Get(0).Message())
		case f.Message() != nil && !f.IsMap():
			unset(t, m.Get(f).Message())
		}
	}
}
