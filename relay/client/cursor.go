package client

import (
	"errors"
	"net/http"
	"net/url"
)

const (
	// maxCursor is the maximum size of a cursor in a query. A longer one does not fit into the header of the request that
	// resumes after it.
	maxCursor = 8 << 10
	// minLongCursor is the minimum size of a cursor in a query that can make a request too large. Without a shorter cursor,
	// the request would still be too large.
	minLongCursor = 256
)

// cursorSize returns the size of a cursor in a query, in bytes. One byte of the cursor takes up to three there.
func cursorSize(cursor string) int { return len(url.QueryEscape(cursor)) }

// IsCursorRejected reports whether an error of [Client.Listen] is the rejection of the cursor after which the stream should
// start. The server does not know the cursor, or the request is too large because of it. A stream without a cursor may
// start.
func IsCursorRejected(err error) bool {
	var rejected *cursorError
	return errors.As(err, &rejected)
}

// cursorError is a response that each request with the cursor would receive.
type cursorError struct{ response *Error }

func (e *cursorError) Error() string { return e.response.Error() }
func (e *cursorError) Unwrap() error { return e.response }

// isCursorRejection reports whether the response to the upgrade rejects the cursor of the request.
func isCursorRejection(response *Error, cursor string) bool {
	switch response.Status {
	case http.StatusUnprocessableEntity:
		return response.Extra["parameter"] == "after" && cursor != ""
	case http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong, http.StatusRequestHeaderFieldsTooLarge:
		return cursorSize(cursor) >= minLongCursor
	}
	return false
}
