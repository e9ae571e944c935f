package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestErrorCodes(t *testing.T) {
	for code, status := range map[Code]int{
		CodeInvalidSyntax: 400, CodeAuthInvalid: 401, CodeAuthExpired: 401, CodePermissions: 403, CodeWrongHub: 403,
		CodeNoURI: 404, CodeMethod: 405, CodeTooLarge: 413, CodeInvalidContentType: 415, CodeMissingArgument: 422,
		CodeInvalidArgument: 422, CodeUpgradeRequired: 426, CodeUnknown: 500, CodeNotReady: 503,
	} {
		e := NewError(code, "")
		if e.Status() != status || !strings.HasPrefix(string(code), fmt.Sprint(status)+".") {
			t.Errorf("%s: got status %d", code, e.Status())
		}
		if e.Title() == "" {
			t.Errorf("%s has no title", code)
		}
	}
	if got := NewError("999.unheard-of", "").Status(); got != 500 {
		t.Errorf("unknown code: got status %d, want 500", got)
	}
}

func TestError_WithReturnsCopies(t *testing.T) {
	first := NewError(CodeInvalidArgument, "no such topic")
	second := first.WithPointer("/topic").WithExtra("nearest", "job.created").WithExtra("index", 3)
	if first.Source != "" || first.Extra != nil {
		t.Errorf("the original error changed: %+v", first)
	}
	if second.Extra["nearest"] != "job.created" || second.Extra["index"] != 3 {
		t.Errorf("extra is %v", second.Extra)
	}
	if got, want := second.Error(), "no such topic (422.invalid-argument at /topic)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := NewError(CodeUnknown, "").Error(); got != "Something went wrong inside the relay (500.unknown)" {
		t.Errorf("got %q", got)
	}
}

func TestJSONPointer(t *testing.T) {
	for want, tokens := range map[string][]string{
		"": nil, "/": {""}, "/context/hub_id": {"context", "hub_id"}, "/a~1b/~0/~01": {"a/b", "~", "~1"},
	} {
		if got := JSONPointer(tokens...); got != want {
			t.Errorf("%q: got %q, want %q", tokens, got, want)
		}
	}
}

func TestClassify(t *testing.T) {
	plain := errors.New("refused")
	for name, tc := range map[string]struct {
		err   error
		want  Outcome
		after time.Duration
		text  string
	}{
		"nil":             {nil, OutcomeDelivered, 0, "delivered"},
		"plain":           {plain, OutcomeRetry, 0, "retry"},
		"deadline":        {context.DeadlineExceeded, OutcomeRetry, 0, "retry"},
		"permanent":       {Permanent(plain), OutcomePermanent, 0, "permanent"},
		"wrapped":         {fmt.Errorf("post: %w", Permanent(plain)), OutcomePermanent, 0, "permanent"},
		"later":           {RetryAfter(plain, time.Minute), OutcomeRetry, time.Minute, "retry"},
		"gone":            {Gone(plain), OutcomeGone, 0, "gone"},
		"permanent of no": {Permanent(nil), OutcomeDelivered, 0, "delivered"},
		"gone of no":      {Gone(nil), OutcomeDelivered, 0, "delivered"},
		"later of no":     {RetryAfter(nil, time.Minute), OutcomeDelivered, 0, "delivered"},
	} {
		got, after := Classify(tc.err)
		if got != tc.want || after != tc.after || got.String() != tc.text {
			t.Errorf("%s: %v after %v", name, got, after)
		}
	}
	if !errors.Is(Permanent(plain), plain) || Permanent(plain).Error() != "refused" {
		t.Error("Permanent hides the wrapped error")
	}
	if got := (&ResponseError{Status: 502}).Error(); got != "status 502" {
		t.Errorf("got %q", got)
	}
	if got := (&FieldError{Field: "retry.schedule", Problem: "is empty"}).Error(); got != "retry.schedule is empty" {
		t.Errorf("got %q", got)
	}
}

func TestEnvelope(t *testing.T) {
	n := Notification{ID: "68a1b2c3d4e5f60718293a4b", Data: []byte(`{"topic":"job.created",
		"object":{"id":"1","state":"new","error":"","ID":"other","big":12345678901234567890},
		"context":{"hub_id":"h","account_id":"a","environments":[],"dns_zones":["z"],"clusters":[],
			"containers":["c","d"],"HUB_ID":"evil","contextual":null},
		"flags":null,"Topic":"evil","CONTEXT":{"hub_id":"evil"}}`)}
	e, err := n.Envelope()
	if err != nil {
		t.Fatal(err)
	}
	if e.Topic != "job.created" || e.Object != (Object{ID: "1", State: "new"}) || e.Context.HubID != "h" ||
		e.Context.AccountID != "a" {
		t.Errorf("got %+v", e)
	}
	if len(e.Context.Containers) != 2 || len(e.Context.DNSZones) != 1 || e.Context.Clusters == nil {
		t.Errorf("got %+v", e.Context)
	}
	for _, bad := range []string{``, `[]`, `{"object":3}`, `{"context":{"hub_id":3}}`} {
		if _, err := (Notification{ID: "x1", Data: []byte(bad)}).Envelope(); err == nil ||
			!strings.Contains(err.Error(), "x1") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
