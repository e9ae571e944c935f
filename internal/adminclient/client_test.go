package adminclient_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/adminclient"
)

// A daemon that returns millions of tiny entries cannot fill the memory of a command.
func TestCall_LimitsEntriesOfPage(t *testing.T) {
	t.Parallel()
	tooMany := "[" + strings.Repeat("{},", 1_000_000) + "{}]"
	for name, tt := range map[string]struct {
		body string
		want string
	}{
		"a second list":      {`{"data":[],"data":` + tooMany + `}`, "more than 10000 entries"},
		"another case":       {`{"DATA":` + tooMany + `}`, "more than 10000 entries"},
		"a page":             {`{"next":"x","data":[` + strings.Repeat("{},", 999) + `{}]}`, ""},
		"no entries":         {`{"data":[]}`, ""},
		"too many entries":   {`{"next":{"a":[1]},"data":` + tooMany + `}`, "more than 10000 entries"},
		"data is not a list": {`{"data":7}`, "cannot unmarshal"},
	} {
		daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(tt.body))
		}))
		c := adminclient.New(daemon.URL, adminclient.Options{})
		_, err := adminclient.Call(t.Context(), c, adminapi.ListKeys(), adminapi.PageRequest{})
		daemon.Close()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: got error %v, want %q", name, err, tt.want)
		}
	}
}
