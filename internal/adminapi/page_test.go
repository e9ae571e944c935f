package adminapi_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/adminapi"
)

func TestSelectPage(t *testing.T) {
	t.Parallel()
	list := []string{"a", "b", "b", "c", "d"}
	for name, tt := range map[string]struct {
		request adminapi.PageRequest
		want    adminapi.Page[string]
	}{
		"default":          {adminapi.PageRequest{}, adminapi.Page[string]{Data: list}},
		"limit":            {adminapi.PageRequest{Limit: 1}, adminapi.Page[string]{Data: list[:1], Next: "a"}},
		"next":             {adminapi.PageRequest{Limit: 2, After: "b"}, adminapi.Page[string]{Data: list[3:]}},
		"same name":        {adminapi.PageRequest{Limit: 1, After: "a"}, adminapi.Page[string]{Data: list[1:3], Next: "b"}},
		"entry is gone":    {adminapi.PageRequest{Limit: 1, After: "bb"}, adminapi.Page[string]{Data: list[3:4], Next: "c"}},
		"last":             {adminapi.PageRequest{After: "d"}, adminapi.Page[string]{}},
		"negative limit":   {adminapi.PageRequest{Limit: -1}, adminapi.Page[string]{Data: list}},
		"large limit":      {adminapi.PageRequest{Limit: 1 << 40}, adminapi.Page[string]{Data: list}},
		"exactly the rest": {adminapi.PageRequest{Limit: 1, After: "c"}, adminapi.Page[string]{Data: list[4:]}},
	} {
		got := adminapi.SelectPage(list, tt.request, func(s string) string { return s }, strings.Compare)
		if !slices.Equal(got.Data, tt.want.Data) || got.Next != tt.want.Next {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}

func TestSelectPage_MaximumSize(t *testing.T) {
	t.Parallel()
	list := make([]string, 2500)
	for i := range list {
		list[i] = strings.Repeat("x", i+1)
	}
	byLength := func(a, b string) int { return cmp.Compare(len(a), len(b)) }
	var sizes []int
	for request := (adminapi.PageRequest{Limit: 5000}); ; {
		page := adminapi.SelectPage(list, request, func(s string) string { return s }, byLength)
		sizes = append(sizes, len(page.Data))
		if request.After = page.Next; page.Next == "" {
			break
		}
	}
	if want := []int{1000, 1000, 500}; !slices.Equal(sizes, want) {
		t.Errorf("got pages of %v entries, want %v", sizes, want)
	}
}
