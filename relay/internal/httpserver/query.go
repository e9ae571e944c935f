package httpserver

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/hubrelay/hubrelay/relay"
)

// ParseQuery returns the query parameters of a request. It rejects an unknown parameter whose name resembles a known one,
// because a misspelled filter would select too much. Other unknown parameters are ignored, as is usual in HTTP.
func ParseQuery(r *http.Request, known ...string) (url.Values, *relay.Error) {
	if r.URL.RawQuery == "" {
		return nil, nil
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, relay.NewError(relay.CodeInvalidSyntax, "the query string cannot be read")
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if slices.Contains(known, name) {
			continue
		}
		if nearest := relay.ClosestName(name, known); nearest != "" {
			quoted := strconv.Quote(relay.Truncate(name, 60))
			return nil, relay.NewError(relay.CodeInvalidArgument, "there is no parameter "+quoted+"; did you mean "+nearest+"?").
				WithExtra("parameter", relay.Truncate(name, 60)).WithExtra("nearest", nearest)
		}
	}
	return query, nil
}
