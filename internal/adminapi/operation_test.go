package adminapi_test

import (
	"errors"
	"net/url"
	"reflect"
	"testing"

	"github.com/hubrelay/hubrelay/internal/adminapi"
)

func TestURL(t *testing.T) {
	t.Parallel()
	if got, err := adminapi.ShowDeadLetter().URL("..", "."); err != nil || got != "/api/sinks/%2E%2E/deadletters/%2E" {
		t.Errorf("got %s, %v, want escaped dots, because servers remove others", got, err)
	}
	got, err := adminapi.ShowDeadLetter().URL("a/b?c", "7")
	if want := "/api/sinks/a%2Fb%3Fc/deadletters/7"; err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	for _, params := range [][]string{{}, {"a"}, {"a", "b", "c"}} {
		if _, err := adminapi.ShowDeadLetter().URL(params...); err == nil {
			t.Errorf("%d parameters were accepted, want an error for a number other than 2", len(params))
		}
	}
}

func TestQuery(t *testing.T) {
	t.Parallel()
	request := adminapi.ListDeadLettersRequest{
		DeadLetterFilter: adminapi.DeadLetterFilter{Topics: []string{"a.*", "!b"}, HubID: "h&1", Since: "24h"},
		PageRequest:      adminapi.PageRequest{After: "1-0", Limit: 7},
	}
	query := adminapi.EncodeQuery(request)
	if got, want := query.Encode(), "after=1-0&hub_id=h%261&limit=7&since=24h&topics=a.%2A&topics=%21b"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, err := adminapi.DecodeQuery[adminapi.ListDeadLettersRequest](query); err != nil || !reflect.DeepEqual(got, request) {
		t.Errorf("got %+v, %v, want %+v", got, err, request)
	}
	if got := adminapi.EncodeQuery(adminapi.ListAuditRequest{}); len(got) != 0 {
		t.Errorf("got %v for a request without values, want none", got)
	}
	for _, limit := range []string{"0", "-1", "x", "1.5"} {
		_, err := adminapi.DecodeQuery[adminapi.ListAuditRequest](url.Values{"limit": {limit}})
		var number *adminapi.NumberError
		if !errors.As(err, &number) || number.Parameter != "limit" {
			t.Errorf("limit %s: got %v, want a NumberError", limit, err)
		}
	}
}
