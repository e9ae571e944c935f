package relay

import (
	"cmp"
	"net/http"
	"strings"
)

// Code is a public error code: an HTTP status, a dot and a slug.
type Code string

// The codes of the public API. They are a contract: no code is renamed or removed.
const (
	CodeInvalidSyntax      Code = "400.invalid-syntax"
	CodeAuthInvalid        Code = "401.auth-invalid"
	CodeAuthExpired        Code = "401.auth-expired"
	CodePermissions        Code = "403.permissions"
	CodeWrongHub           Code = "403.wrong-hub"
	CodeNoURI              Code = "404.uri"
	CodeNoSink             Code = "404.sink"
	CodeNoDeadLetter       Code = "404.deadletter"
	CodeNotQuarantined     Code = "404.quarantine"
	CodeNoEvent            Code = "404.event"
	CodeNoContainer        Code = "404.container"
	CodeNoInstance         Code = "404.instance"
	CodeNoJob              Code = "404.job"
	CodeNoKey              Code = "404.key"
	CodeMethod             Code = "405.method"
	CodeInvalidState       Code = "409.invalid-state"
	CodeTooLarge           Code = "413.too-large"
	CodeInvalidContentType Code = "415.invalid-content-type"
	CodeWrongRelay         Code = "421.wrong-relay" // admin API only
	CodeMissingArgument    Code = "422.missing-argument"
	CodeInvalidArgument    Code = "422.invalid-argument"
	CodeNotCompatible      Code = "422.not-compatible"
	CodeUpgradeRequired    Code = "426.upgrade-required"
	CodeRateLimiting       Code = "429.rate-limiting"
	CodeUnknown            Code = "500.unknown"
	CodeNotReady           Code = "503.not-ready"
	CodeNotEnabled         Code = "503.not-enabled"
	CodeStorageFull        Code = "503.storage-full"
	CodeAuthUnavailable    Code = "503.auth-unavailable"
)

type codeInfo struct {
	status int
	title  string
}

func codeInfoFor(c Code) codeInfo {
	switch c {
	case CodeInvalidSyntax:
		return codeInfo{http.StatusBadRequest, "The request cannot be read"}
	case CodeAuthInvalid:
		return codeInfo{http.StatusUnauthorized, "The credentials are missing or wrong"}
	case CodeAuthExpired:
		return codeInfo{http.StatusUnauthorized, "The credentials have expired"}
	case CodePermissions:
		return codeInfo{http.StatusForbidden, "This is not permitted"}
	case CodeWrongHub:
		return codeInfo{http.StatusForbidden, "The key has no access to this hub"}
	case CodeNoURI:
		return codeInfo{http.StatusNotFound, "There is nothing at this address"}
	case CodeNoSink:
		return codeInfo{http.StatusNotFound, "There is no such sink"}
	case CodeNoDeadLetter:
		return codeInfo{http.StatusNotFound, "There is no such dead letter"}
	case CodeNoEvent:
		return codeInfo{http.StatusNotFound, "There is no such event"}
	case CodeNotQuarantined:
		return codeInfo{http.StatusNotFound, "There is no such entry in the quarantine"}
	case CodeNoContainer:
		return codeInfo{http.StatusNotFound, "There is no such container"}
	case CodeNoInstance:
		return codeInfo{http.StatusNotFound, "There is no such instance"}
	case CodeNoJob:
		return codeInfo{http.StatusNotFound, "There is no such job"}
	case CodeNoKey:
		return codeInfo{http.StatusNotFound, "There is no such key"}
	case CodeInvalidState:
		return codeInfo{http.StatusConflict, "This is not possible in the present state"}
	case CodeMethod:
		return codeInfo{http.StatusMethodNotAllowed, "The method is not allowed here"}
	case CodeTooLarge:
		return codeInfo{http.StatusRequestEntityTooLarge, "The request is too large"}
	case CodeInvalidContentType:
		return codeInfo{http.StatusUnsupportedMediaType, "The content type is not accepted here"}
	case CodeWrongRelay:
		return codeInfo{http.StatusMisdirectedRequest, "This is another relay"}
	case CodeMissingArgument:
		return codeInfo{http.StatusUnprocessableEntity, "Something required is missing"}
	case CodeInvalidArgument:
		return codeInfo{http.StatusUnprocessableEntity, "A value is not acceptable"}
	case CodeNotCompatible:
		return codeInfo{http.StatusUnprocessableEntity, "These two do not go together"}
	case CodeUpgradeRequired:
		return codeInfo{http.StatusUpgradeRequired, "This needs a websocket upgrade over HTTP/1.1"}
	case CodeRateLimiting:
		return codeInfo{http.StatusTooManyRequests, "This is more than is allowed"}
	case CodeNotEnabled:
		return codeInfo{http.StatusServiceUnavailable, "This relay is not configured to do this"}
	case CodeStorageFull:
		return codeInfo{http.StatusServiceUnavailable, "The storage of the relay is full"}
	case CodeAuthUnavailable:
		return codeInfo{http.StatusServiceUnavailable, "The credentials cannot be checked right now"}
	case CodeNotReady:
		return codeInfo{http.StatusServiceUnavailable, "The relay cannot do this right now"}
	default:
		return codeInfo{http.StatusInternalServerError, "Something went wrong inside the relay"}
	}
}

// Error is an error of the public API. Its fields are the fields of the error envelope.
type Error struct {
	Code   Code
	Detail string
	// Source is a JSON pointer (RFC 6901) into the request body, or empty.
	Source string
	// Extra contains more facts for programs, or is nil.
	Extra map[string]any
}

// NewError returns an Error without Source and Extra.
func NewError(code Code, detail string) *Error { return &Error{Code: code, Detail: detail} }

// WithPointer returns a copy of e with the source pointer, a JSON pointer (RFC 6901).
func (e *Error) WithPointer(pointer string) *Error {
	c := *e
	c.Source = pointer
	return &c
}

// WithExtra returns a copy of e with one more entry in Extra.
func (e *Error) WithExtra(key string, value any) *Error {
	c := *e
	c.Extra = make(map[string]any, len(e.Extra)+1)
	for k, v := range e.Extra {
		c.Extra[k] = v
	}
	c.Extra[key] = value
	return &c
}

// Status returns the HTTP status of the code.
func (e *Error) Status() int { return codeInfoFor(e.Code).status }

// Title returns a short description of the code. It is the same for every error with that code.
func (e *Error) Title() string { return codeInfoFor(e.Code).title }

// Error returns the detail, or the title without one, then the code and the source in parentheses.
func (e *Error) Error() string {
	where := string(e.Code)
	if e.Source != "" {
		where += " at " + e.Source
	}
	return cmp.Or(e.Detail, e.Title()) + " (" + where + ")"
}

// JSONPointer escapes the tokens and joins them to a JSON pointer (RFC 6901).
func JSONPointer(tokens ...string) string {
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	var b strings.Builder
	for _, t := range tokens {
		b.WriteByte('/')
		b.WriteString(escape.Replace(t))
	}
	return b.String()
}
