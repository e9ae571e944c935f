// Package envelope describes the body of an error response of the public API and of the admin API.
package envelope

import (
	"cmp"

	"github.com/hubrelay/hubrelay/relay"
)

// Error is the member error of the body. [relay.Error] describes the members.
type Error struct {
	// Status is the HTTP status.
	Status int `json:"status"`
	// Code identifies the kind of error, such as 404.sink.
	Code relay.Code `json:"code"`
	// Title describes the code.
	Title string `json:"title"`
	// Detail describes this error and its remedy.
	Detail string `json:"detail"`
	// Source is a JSON pointer (RFC 6901) into the body of the request.
	Source string `json:"source,omitempty"`
	// Extra contains more facts for programs, by name.
	Extra map[string]any `json:"extra,omitempty"`
}

func (e *Error) Error() string {
	return (&relay.Error{Code: e.Code, Detail: cmp.Or(e.Detail, e.Title), Source: e.Source}).Error()
}
