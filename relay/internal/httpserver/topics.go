package httpserver

import (
	"errors"

	"github.com/hubrelay/hubrelay/relay"
)

// ParseTopics parses the patterns of the parameter topics. It also rejects a pattern that matches no topic of the catalog,
// because that is probably a typing error. The error is 422.invalid-argument, with the nearest topic in extra.nearest.
func ParseTopics(catalog *relay.Catalog, list []string) (relay.Patterns, *relay.Error) {
	if err := catalog.CheckPatterns(list); err != nil {
		return relay.Patterns{}, newPatternError(err)
	}
	patterns, err := relay.ParsePatterns(list)
	if err != nil {
		return relay.Patterns{}, newPatternError(err)
	}
	return patterns, nil
}

func newPatternError(err error) *relay.Error {
	e := NewTopicsError(err.Error())
	var bad *relay.PatternError
	if errors.As(err, &bad) && bad.Nearest != "" {
		return e.WithExtra("nearest", bad.Nearest)
	}
	return e
}

// NewTopicsError returns the error for the parameter topics.
func NewTopicsError(detail string) *relay.Error {
	return relay.NewError(relay.CodeInvalidArgument, detail).WithExtra("parameter", "topics")
}
